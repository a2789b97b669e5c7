#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/net/tcp/channel.h"
#include "runtime/net/tcp/channel_impl.h"

namespace sirtaki::net {
namespace {

constexpr std::size_t kMaxAnnounced = 1 << 20;
// Limit of the memory kept for early messages. A window may be much larger, but is rarely full.
constexpr std::size_t kMostSpareBytes = 1 << 20;

// Size by which kept memory is counted; the minimum bounds the number of small pieces.
std::size_t kept_size(const std::vector<std::byte>& memory) {
  constexpr std::size_t kLeast = 4096;
  return std::max(kLeast, memory.capacity());
}

}  // namespace

Expectation Channel::expected(const Posted& posted) const {
  return {posted.out.size(), posted.check};
}

void Channel::recv(const Envelope& envelope, Bytes out, Done done) {
  auto posted = std::make_unique<Posted>();
  posted->tag = envelope.tag;
  posted->slot = envelope.slot;
  posted->check = envelope.check;
  posted->out = out;
  posted->done = std::move(done);
  if (auto early = early_.take_if(envelope.tag, envelope.slot, [](const auto& entry) { return !entry->receiver; })) {
    take_early(std::move(*early), envelope, std::move(posted));
    return;
  }
  if (!failed_.ok()) {
    complete(std::move(posted->done), failed_);
    return;
  }
  // The sender of a large message needs no other answer, so this one need not wait for the announcement.
  if (out.size() > std::max(shared_.limits.eager_bytes, push_bytes())) {
    permit(envelope, *posted);
  }
  posted_.push(envelope.tag, envelope.slot, std::move(posted));
}

void Channel::take_early(std::unique_ptr<Early> early, const Envelope& envelope, std::unique_ptr<Posted> posted) {
  if (!early->announced_only) {
    if (early->whole) {
      finish_early(std::move(early), std::move(posted));
      return;
    }
    early->receiver = std::move(posted);
    early_.push(envelope.tag, envelope.slot, std::move(early));
    return;
  }
  if (expected(*posted) != early->there) {
    reject(envelope, *posted, early->there);
    return;
  }
  posted->announced = true;
  permit(envelope, *posted);
  posted_.push(envelope.tag, envelope.slot, std::move(posted));
}

void Channel::finish_early(std::unique_ptr<Early> early, std::unique_ptr<Posted> posted) {
  give_credit(cost(early->data.size()));
  if (expected(*posted) != early->there) {
    Envelope envelope;
    envelope.tag = posted->tag;
    envelope.slot = posted->slot;
    reject(envelope, *posted, early->there);
    return;
  }
  if (!early->data.empty()) {
    std::memcpy(posted->out.data(), early->data.data(), early->data.size());
  }
  keep_memory(std::move(early->data));
  complete(std::move(posted->done), {});
}

// A burst of small operations in another order than on this rank arrives early; reuse avoids an allocation for each.
std::vector<std::byte> Channel::early_memory(std::size_t bytes) {
  std::vector<std::byte> memory;
  if (!spare_.empty()) {
    memory = std::move(spare_.back());
    spare_.pop_back();
    spare_bytes_ -= kept_size(memory);
  }
  memory.resize(bytes);
  return memory;
}

void Channel::keep_memory(std::vector<std::byte> memory) {
  const std::size_t size = kept_size(memory);
  if (memory.capacity() > 0 && spare_bytes_ + size <= std::min(shared_.limits.window_bytes, kMostSpareBytes)) {
    spare_bytes_ += size;
    spare_.push_back(std::move(memory));
  }
}

void Channel::reject(const Envelope& envelope, Posted& posted, const Expectation& there) {
  complete(std::move(posted.done), mismatch_error(peer_, expected(posted), there));
  if (failed_.ok()) {
    Envelope reply = envelope;
    reply.check = posted.check;
    outbox_.push_control(frame(FrameType::kReject, reply, posted.out.size()));
  }
}

void Channel::permit(const Envelope& envelope, Posted& posted) {
  posted.permitted = true;
  Envelope reply = envelope;
  reply.check = posted.check;
  outbox_.push_control(frame(FrameType::kCts, reply, posted.out.size()));
}

void Channel::give_credit(std::size_t bytes) {
  window_used_ -= bytes;
  credit_due_ += bytes;
  if (credit_due_ >= shared_.limits.window_bytes / 4 && failed_.ok()) {
    outbox_.push_control(frame(FrameType::kCredit, {}, credit_due_));
    credit_due_ = 0;
  }
}

Status Channel::take_window(std::size_t length) {
  if (cost(length) > shared_.limits.window_bytes - window_used_ - credit_due_) {
    return corrupt("rank " + std::to_string(peer_) + " exceeds its window of messages without permission");
  }
  window_used_ += cost(length);
  return {};
}

Status Channel::on_eager(const FrameHeader& header) {
  if (header.length > shared_.limits.eager_bytes) {
    return corrupt("rank " + std::to_string(peer_) + " sent " + std::to_string(header.length) +
                   " bytes in one frame; at most " + std::to_string(shared_.limits.eager_bytes) + " are allowed");
  }
  const auto length = static_cast<std::size_t>(header.length);
  SRT_TRY(take_window(length));
  if (!failed_.ok() || shared_.tombstones->find(header.tag) != nullptr) {
    return {};
  }
  const Expectation there{header.length, header.check};
  if (auto posted = posted_.take_if(header.tag, header.slot, [](const auto& entry) { return !entry->announced; })) {
    if (expected(**posted) == there) {
      incoming_.eager = std::move(*posted);
      incoming_.to = incoming_.eager->out.data();
      return {};
    }
    Envelope envelope;
    envelope.tag = header.tag;
    envelope.slot = header.slot;
    reject(envelope, **posted, there);
    return {};
  }
  auto early = std::make_unique<Early>();
  early->there = there;
  early->data = early_memory(length);
  incoming_.early = early.get();
  incoming_.to = early->data.data();
  early_.push(header.tag, header.slot, std::move(early));
  return {};
}

void Channel::on_eager_end() {
  const auto length = static_cast<std::size_t>(incoming_.header.length);
  ++counters_.messages_received;
  counters_.bytes_received += length;
  if (incoming_.early != nullptr) {
    on_early_end(*std::exchange(incoming_.early, nullptr));
    return;
  }
  give_credit(cost(length));
  if (incoming_.eager) {
    complete(std::move(incoming_.eager->done), {});
    incoming_.eager.reset();
  } else {
    counters_.bytes_dropped += length;
  }
}

void Channel::on_early_end(Early& target) {
  target.whole = true;
  if (target.receiver) {
    auto early = early_.take_if(incoming_.header.tag, incoming_.header.slot,
                                [&target](const auto& entry) { return entry.get() == &target; });
    auto receiver = std::move((*early)->receiver);
    finish_early(std::move(*early), std::move(receiver));
  }
}

// A message that no receive will take does not stay in memory, so its part of the window is free at once.
Status Channel::on_push(const FrameHeader& header) {
  if (header.length <= shared_.limits.eager_bytes || header.length > push_bytes()) {
    return corrupt("rank " + std::to_string(peer_) + " pushes " + std::to_string(header.length) + " bytes; more than " +
                   std::to_string(shared_.limits.eager_bytes) + " and at most " + std::to_string(push_bytes()) +
                   " are allowed");
  }
  const auto length = static_cast<std::size_t>(header.length);
  SRT_TRY(take_window(length));
  if (!failed_.ok() || shared_.tombstones->find(header.tag) != nullptr) {
    give_credit(cost(length));
    return {};
  }
  const Expectation there{header.length, header.check};
  const auto unannounced = [](const auto& entry) { return !entry->announced; };
  if (auto* found = posted_.find_if(header.tag, header.slot, unannounced)) {
    Posted& posted = **found;
    if (expected(posted) == there) {
      posted.announced = true;
      posted.pushed = true;
      return {};
    }
    give_credit(cost(length));
    Envelope envelope;
    envelope.tag = header.tag;
    envelope.slot = header.slot;
    auto taken = posted_.take_if(header.tag, header.slot, unannounced);
    reject(envelope, **taken, there);
    return {};
  }
  auto early = std::make_unique<Early>();
  early->there = there;
  early->pushed = true;
  early->data = early_memory(length);
  early_.push(header.tag, header.slot, std::move(early));
  return {};
}

// A message whose receive is older than its announcement comes before one that is still without a receive.
Status Channel::on_pushed(const FrameHeader& header) {
  if (header.length > shared_.limits.fragment_bytes || push_bytes() == 0) {
    return corrupt("rank " + std::to_string(peer_) + " pushed a fragment of " + std::to_string(header.length) +
                   " bytes; up to " + std::to_string(push_bytes() == 0 ? 0 : shared_.limits.fragment_bytes) +
                   " are allowed");
  }
  if (auto* found = posted_.find_if(header.tag, header.slot, [](const auto& entry) { return entry->pushed; })) {
    return on_fragment(header, **found);
  }
  auto* found = early_.find_if(header.tag, header.slot, [](const auto& e) { return e->pushed && !e->whole; });
  if (found == nullptr) {
    return {};  // the operation has ended on this rank
  }
  Early& early = **found;
  if (header.length == 0 || header.length > early.data.size() - early.received) {
    return corrupt("rank " + std::to_string(peer_) + " sent other bytes than it announced");
  }
  incoming_.early = &early;
  incoming_.to = early.data.data() + early.received;
  return {};
}

Status Channel::on_rts(const FrameHeader& header) {
  if (!failed_.ok() || shared_.tombstones->find(header.tag) != nullptr) {
    return {};
  }
  const Expectation there{header.length, header.check};
  Envelope envelope;
  envelope.tag = header.tag;
  envelope.slot = header.slot;
  const auto unannounced = [](const auto& entry) { return !entry->announced; };
  if (auto* found = posted_.find_if(header.tag, header.slot, unannounced)) {
    Posted& posted = **found;
    if (expected(posted) != there) {
      auto taken = posted_.take_if(header.tag, header.slot, unannounced);
      reject(envelope, **taken, there);
      return {};
    }
    posted.announced = true;
    if (!posted.permitted) {
      permit(envelope, posted);
    }
    return {};
  }
  if (early_.size() >= kMaxAnnounced) {
    return corrupt("rank " + std::to_string(peer_) + " announces more messages than operations can need");
  }
  auto early = std::make_unique<Early>();
  early->there = there;
  early->announced_only = true;
  early_.push(header.tag, header.slot, std::move(early));
  return {};
}

Status Channel::on_data(const FrameHeader& header) {
  if (header.length > shared_.limits.fragment_bytes) {
    return corrupt("rank " + std::to_string(peer_) + " sent a fragment of " + std::to_string(header.length) +
                   " bytes; up to " + std::to_string(shared_.limits.fragment_bytes) + " are allowed");
  }
  auto* found = posted_.find_if(header.tag, header.slot, [](const auto& entry) { return entry->permitted; });
  if (found == nullptr) {
    return {};  // the operation has ended on this rank
  }
  return on_fragment(header, **found);
}

Status Channel::on_fragment(const FrameHeader& header, Posted& posted) {
  if (header.length > posted.out.size() - posted.received) {
    return corrupt("rank " + std::to_string(peer_) + " sent more than it was permitted to");
  }
  if (header.length == 0 && !posted.out.empty()) {
    return corrupt("rank " + std::to_string(peer_) + " sent an empty fragment of a message that is not empty");
  }
  if (posted.received == 0) {
    posted.begin = shared_.clock->now();
  }
  incoming_.data = &posted;
  incoming_.to = posted.out.data() + posted.received;
  return {};
}

void Channel::on_data_end() {
  if (Early* const early = std::exchange(incoming_.early, nullptr)) {
    early->received += static_cast<std::size_t>(incoming_.header.length);
    counters_.bytes_received += incoming_.header.length;
    if (early->received == early->data.size()) {
      ++counters_.messages_received;
      on_early_end(*early);
    }
    return;
  }
  if (incoming_.data == nullptr) {
    counters_.bytes_dropped += incoming_.header.length;
    return;
  }
  Posted* const target = std::exchange(incoming_.data, nullptr);
  target->received += static_cast<std::size_t>(incoming_.header.length);
  counters_.bytes_received += incoming_.header.length;
  if (target->received < target->out.size()) {
    return;
  }
  auto posted =
      posted_.take_if(target->tag, target->slot, [target](const auto& entry) { return entry.get() == target; });
  ++counters_.messages_received;
  if ((*posted)->pushed) {
    give_credit(cost((*posted)->out.size()));
  }
  TransferSample sample;
  sample.peer = peer_;
  sample.bytes = (*posted)->out.size();
  sample.queued = (*posted)->begin;
  sample.begin = (*posted)->begin;
  sample.end = shared_.clock->now();
  shared_.samples->push_back(sample);
  complete(std::move((*posted)->done), {});
}

void Channel::cancel_receives(const TagGroup& tags, const Status& cause) {
  for (auto& posted : posted_.take_tags(tags)) {
    if (posted->pushed) {
      give_credit(cost(posted->out.size()));
    }
    complete(std::move(posted->done), cause);
  }
  for (auto& early : early_.take_tags(tags)) {
    if (early->receiver) {
      complete(std::move(early->receiver->done), cause);
    }
    // The window of a frame whose bytes are still arriving is returned at its end.
    if (early->pushed || (!early->announced_only && early->whole)) {
      give_credit(cost(early->data.size()));
    }
  }
  if (incoming_.left == 0 || !tags.contains(incoming_.header.tag)) {
    return;
  }
  if (incoming_.eager) {
    complete(std::move(incoming_.eager->done), cause);
    incoming_.eager.reset();
  }
  incoming_.early = nullptr;
  incoming_.data = nullptr;
  incoming_.to = nullptr;
}

void Channel::fail_receives(const Status& cause, bool keep_arrived) {
  for (auto& posted : posted_.take_all()) {
    complete(std::move(posted->done), cause);
  }
  if (incoming_.eager) {
    complete(std::move(incoming_.eager->done), cause);
    incoming_.eager.reset();
  }
  incoming_.early = nullptr;
  incoming_.data = nullptr;
  incoming_.to = nullptr;
  auto dropped = early_.take_where([keep_arrived](const auto& early) { return !keep_arrived || !early->whole; });
  for (auto& early : dropped) {
    if (early->receiver) {
      complete(std::move(early->receiver->done), cause);
    }
  }
}

}  // namespace sirtaki::net
