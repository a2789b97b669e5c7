#include <string>
#include <utility>

#include "runtime/net/tcp/channel.h"
#include "runtime/net/tcp/channel_impl.h"

namespace sirtaki::net {
namespace {

// Limit of permissions that a peer may send ahead of their messages; far more than any operation needs.
constexpr std::size_t kMaxPermits = 1 << 20;

}  // namespace

void Channel::send(const Envelope& envelope, ConstBytes data, Done done) {
  if (!failed_.ok()) {
    complete(std::move(done), failed_);
    return;
  }
  const bool small = data.size() <= shared_.limits.eager_bytes;
  Expectation* const permit = permits_.find(envelope.tag, envelope.slot);
  if (small && permit == nullptr && cost(data.size()) <= credit_) {
    send_eager(envelope, data, std::move(done));
    return;
  }
  auto waiting = std::make_unique<Waiting>(Waiting{envelope, data, std::move(done)});
  // Half of the window stays free for small messages, which may be urgent.
  if (!small && data.size() <= push_bytes() && permit == nullptr &&
      cost(data.size()) + shared_.limits.window_bytes / 2 <= credit_) {
    push(std::move(waiting));
    return;
  }
  const Expectation here{data.size(), envelope.check};
  if (permit != nullptr) {
    const Expectation there = *permit;
    permits_.take(envelope.tag, envelope.slot);
    if (there == here) {
      start_stream(FrameType::kData, std::move(waiting));
      return;
    }
    complete(std::move(waiting->done), mismatch_error(peer_, here, there));
    waiting.reset();
  }
  // The announcement also lets a receiver with another length detect the mismatch.
  announce(FrameType::kRts, envelope, data.size());
  if (waiting) {
    waiting_.push(envelope.tag, envelope.slot, std::move(waiting));
  }
}

void Channel::send_eager(const Envelope& envelope, ConstBytes data, Done done) {
  credit_ -= cost(data.size());
  Outbox::Message message;
  message.header = frame(FrameType::kEager, envelope, data.size());
  message.payload = data;
  message.priority = envelope.priority;
  message.done = std::move(done);
  outbox_.push_frame(std::move(message));
}

void Channel::push(std::unique_ptr<Waiting> waiting) {
  credit_ -= cost(waiting->data.size());
  announce(FrameType::kPush, waiting->envelope, waiting->data.size());
  start_stream(FrameType::kPushed, std::move(waiting));
}

void Channel::announce(FrameType type, const Envelope& envelope, std::size_t bytes) {
  Outbox::Message announcement;
  announcement.header = frame(type, envelope, bytes);
  announcement.priority = envelope.priority;
  outbox_.push_frame(std::move(announcement));
}

void Channel::start_stream(FrameType type, std::unique_ptr<Waiting> waiting) {
  Outbox::Message message;
  message.header = frame(type, waiting->envelope, waiting->data.size());
  message.payload = waiting->data;
  message.priority = waiting->envelope.priority;
  message.done = std::move(waiting->done);
  message.queued = shared_.clock->now();
  outbox_.push_stream(std::move(message));
}

void Channel::written(std::size_t count) {
  outbox_.written(count, shared_.clock->now(), ended_);
  for (Outbox::Ended& end : ended_) {
    ++counters_.messages_sent;
    counters_.bytes_sent += end.sample.bytes;
    if (end.stream) {
      end.sample.peer = peer_;
      shared_.samples->push_back(end.sample);
    }
    complete(std::move(end.done), {});
  }
  ended_.clear();
}

Status Channel::on_cts(const FrameHeader& header) {
  const Expectation there{header.length, header.check};
  auto waiting = waiting_.take(header.tag, header.slot);
  if (waiting) {
    const Expectation here{(*waiting)->data.size(), (*waiting)->envelope.check};
    if (here == there) {
      start_stream(FrameType::kData, std::move(*waiting));
    } else {
      complete(std::move((*waiting)->done), mismatch_error(peer_, here, there));
    }
    return {};
  }
  if (!failed_.ok() || shared_.tombstones->find(header.tag) != nullptr) {
    return {};
  }
  if (permits_.size() >= kMaxPermits) {
    return corrupt("rank " + std::to_string(peer_) + " gives more permissions than operations can need");
  }
  permits_.push(header.tag, header.slot, there);
  return {};
}

Status Channel::on_credit(const FrameHeader& header) {
  if (header.length > shared_.limits.window_bytes - credit_) {
    return corrupt("rank " + std::to_string(peer_) + " returns more of the eager window than was used");
  }
  credit_ += static_cast<std::size_t>(header.length);
  return {};
}

void Channel::on_reject(const FrameHeader& header) {
  const Expectation there{header.length, header.check};
  permits_.take(header.tag, header.slot);
  Status cause(Code::kMismatch,
               "rank " + std::to_string(peer_) + " takes part in the same operation with other arguments: it expects " +
                   std::to_string(header.length) + " bytes in a message that differs here",
               {peer_, {}});
  if (auto waiting = waiting_.take(header.tag, header.slot)) {
    const Expectation here{(*waiting)->data.size(), (*waiting)->envelope.check};
    cause = mismatch_error(peer_, here, there);
    complete(std::move((*waiting)->done), cause);
  }
  // Small messages have left when the other side detects that they do not match. The remaining receives of the
  // operation could never complete, so all of it ends.
  cancel(header.tag, cause);
}

void Channel::cancel_sends(const TagGroup& tags, const Status& cause) {
  Outbox::Cancelled cancelled = outbox_.cancel(tags);
  for (Done& done : cancelled.dones) {
    complete(std::move(done), cause);
  }
  for (const std::size_t bytes : cancelled.unannounced) {
    credit_ += cost(bytes);
  }
  for (auto& waiting : waiting_.take_tags(tags)) {
    complete(std::move(waiting->done), cause);
  }
  permits_.take_tags(tags);
}

void Channel::fail_sends(const Status& cause) {
  for (Done& done : outbox_.cancel_all().dones) {
    complete(std::move(done), cause);
  }
  for (auto& waiting : waiting_.take_all()) {
    complete(std::move(waiting->done), cause);
  }
  permits_.take_all();
}

}  // namespace sirtaki::net
