#include "runtime/net/device/ordered_device.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::net {
namespace {

using Kind = LaunchWord::Kind;

constexpr std::uint32_t kToFirst = 0;
constexpr std::uint32_t kFromFirst = 1;

Envelope envelope_to(Rank peer, OpTag tag, std::uint32_t slot) {
  return {peer, tag, slot, kLaunchWordsCheck, std::numeric_limits<std::int32_t>::min()};
}

// Size of an operation for the limit of a group.
std::size_t size_of(const CollectiveArgs& args) {
  return std::max(args.in.size(), args.out.size());
}

}  // namespace

OrderedDevice::OrderedDevice(PointToPoint& link, std::unique_ptr<DeviceCollectives> inner,
                             const OrderedOptions& options, std::function<void(const Status&)> broken)
    : link_(link), inner_(std::move(inner)), options_(options), broken_(std::move(broken)) {
  SRT_IN_LOOP(link_.loop());
  gone_.resize(static_cast<std::size_t>(size()));
  if (rank() != 0) {
    listen(0);
    return;
  }
  sequencer_.emplace(size());
  for (Rank peer = 1; peer < size(); ++peer) {
    listen(peer);
  }
}

OrderedDevice::~OrderedDevice() {
  self_.reset();
  link_.loop().cancel(grace_);
  link_.cancel(options_.tag, {Code::kShutdown, "the collectives of the device are closed"});
}

template <class Function>
auto OrderedDevice::while_alive(Function function) {
  return [weak = std::weak_ptr(self_), function = std::move(function)](auto&&... args) mutable {
    if (const auto self = weak.lock()) {
      function(**self, std::forward<decltype(args)>(args)...);
    }
  };
}

Caps OrderedDevice::caps() const {
  Caps caps = inner_->caps();
  caps.ordered = false;
  return caps;
}

void OrderedDevice::reply(Done done, Status status) {
  link_.loop().post([moved = std::move(done), status = std::move(status)]() mutable { moved(status); });
}

// ---- messages ----

void OrderedDevice::listen(Rank peer) {
  const auto message = std::make_shared<std::vector<std::byte>>(kLaunchWordsBytes);
  link_.recv(envelope_to(peer, options_.tag, rank() == 0 ? kToFirst : kFromFirst), *message,
             while_alive([peer, message](OrderedDevice& self, const Status& status) {
               if (!status.ok()) {
                 self.on_link_error(peer, status);
                 return;
               }
               self.on_message(peer, *message);
               self.listen(peer);
             }));
}

// A lost peer ends the job in order; a malformed message means that ranks may disagree on the order for good.
void OrderedDevice::on_link_error(Rank peer, const Status& status) {
  if (status.code() == Code::kMismatch) {
    fail(protocol_error(peer, status));
  } else {
    on_peer_lost(peer, status);
  }
}

Status OrderedDevice::protocol_error(Rank peer, const Status& why) const {
  const std::string who = "rank " + std::to_string(job_rank(peer));
  return {Code::kCorrupt,
          who + " and rank " + std::to_string(job_rank(rank())) +
              " cannot agree on the order of launches: " + std::string(why.text()) +
              ". Likely cause: the memory or the network of one of them damages data, or their builds differ",
          {job_rank(peer), ""}};
}

void OrderedDevice::on_message(Rank peer, ConstBytes message) {
  const auto words = decode_launch_words(message);
  Status status = words.status();
  for (std::size_t i = 0; status.ok() && i < words->size(); ++i) {
    status = apply_word(peer, (*words)[i]);
  }
  if (!status.ok()) {
    fail(protocol_error(peer, status));
  }
  if (rank() == 0) {
    flush_later();
  }
}

Status OrderedDevice::apply_word(Rank peer, const LaunchWord& word) {
  if (sequencer_ && word.kind == Kind::kReady) {
    return sequencer_->ready(peer, word.tag, word.number);
  }
  if (sequencer_ && word.kind == Kind::kWithdraw) {
    sequencer_->withdraw(peer, word.tag);
  } else if (!sequencer_ && (word.kind == Kind::kPlaced || word.kind == Kind::kWithdrawn)) {
    const auto kind = word.kind == Kind::kPlaced ? LaunchNotice::Kind::kPlaced : LaunchNotice::Kind::kWithdrawn;
    apply({{kind, rank(), word.tag}, word.number == 1});
  } else if (!sequencer_ && word.kind == Kind::kGone && word.number < size()) {
    const Rank gone = job_rank(word.number);
    on_peer_lost(word.number, {Code::kPeerLost, "rank " + std::to_string(gone) + " is gone", {gone, ""}});
  } else {
    return corrupt("it sends word " + std::to_string(static_cast<int>(word.kind)) + " with number " +
                   std::to_string(word.number) + ", which only the other side may send");
  }
  return {};
}

void OrderedDevice::flush_later() {
  if (!std::exchange(flush_posted_, true)) {
    link_.loop().post(while_alive([](OrderedDevice& self) {
      self.flush_posted_ = false;
      self.flush();
    }));
  }
}

// Takes the decisions that are due. The groups must be equal on all ranks, since NCCL chooses its algorithm by the
// whole group; rank 0 makes them of the operations that it places together, up to the limit.
std::vector<OrderedDevice::Decision> OrderedDevice::decide() {
  // After an end this rank launches nothing, so the others must not get new places either.
  std::vector<LaunchNotice> notices = ended_.ok() ? sequencer_->take() : std::vector<LaunchNotice>();
  std::vector<Decision> decisions;
  std::optional<std::size_t> last;  // last decision of the group that may grow
  std::size_t bytes = 0;
  bool on_host = false;
  for (LaunchNotice& notice : notices) {
    if (notice.kind == LaunchNotice::Kind::kPlaced) {
      Operation& operation = operations_.at(notice.tag);
      operation.placed = true;
      const std::size_t more = size_of(operation.args);
      const bool joins = last && on_host == operation.work.on_host && bytes + more <= options_.group_bytes;
      if (joins) {
        decisions[*last].more = true;
      }
      bytes = more + (joins ? bytes : 0);
      on_host = operation.work.on_host;
      last = decisions.size();
    }
    decisions.push_back({notice});
  }
  return decisions;
}

void OrderedDevice::flush() {
  if (rank() != 0) {
    send(0, std::exchange(unsent_, {}), nullptr);
    return;
  }
  const auto batch = std::make_shared<Batch>();
  std::vector<Decision> decisions = decide();
  const std::optional<Rank> gone = std::exchange(unsent_gone_, std::nullopt);
  for (Rank peer = 1; peer < size(); ++peer) {
    std::vector<LaunchWord> words;
    for (const auto& [notice, more] : decisions) {
      if (notice.to == LaunchNotice::kAll || notice.to == peer) {
        words.push_back(notice.kind == LaunchNotice::Kind::kPlaced ? LaunchWord{Kind::kPlaced, notice.tag, more ? 1 : 0}
                                                                   : LaunchWord{Kind::kWithdrawn, notice.tag, 0});
      }
    }
    if (gone) {
      words.push_back({Kind::kGone, OpTag(), *gone});
    }
    send(peer, words, batch);
  }
  batch->decisions = std::move(decisions);
  batches_.push_back(batch);
  apply_batches();
}

void OrderedDevice::send(Rank peer, std::span<const LaunchWord> words, const std::shared_ptr<Batch>& batch) {
  if (gone_[static_cast<std::size_t>(peer)]) {
    return;
  }
  while (!words.empty()) {
    const std::span<const LaunchWord> next = words.first(std::min(words.size(), kMostLaunchWords));
    words = words.subspan(next.size());
    const auto kept = std::make_shared<std::vector<std::byte>>(encode_launch_words(next));
    if (batch) {
      ++batch->sending;
    }
    link_.send(envelope_to(peer, options_.tag, peer == 0 ? kToFirst : kFromFirst), *kept,
               while_alive([peer, kept, batch](OrderedDevice& self, const Status& status) {
                 if (batch) {
                   --batch->sending;
                 }
                 if (!status.ok()) {
                   self.on_link_error(peer, status);
                 }
                 self.apply_batches();
               }));
  }
}

void OrderedDevice::apply_batches() {
  while (!batches_.empty() && batches_.front()->sending == 0) {
    const auto batch = std::move(batches_.front());
    batches_.pop_front();
    for (const Decision& decision : batch->decisions) {
      if (decision.notice.to == LaunchNotice::kAll || decision.notice.to == 0) {
        apply(decision);
      }
    }
  }
}

// ---- operations ----

void OrderedDevice::start_work(CollectiveArgs args, DeviceWork work, Done done) {
  SRT_IN_LOOP(link_.loop());
  Status refused = ended_;
  refused.update(check_work(args, work));
  const OpTag tag = args.tag;
  if (refused.ok() && operations_.contains(tag)) {
    refused = invalid_argument("tag " + std::to_string(tag.value) + " is already in flight");
  }
  if (!refused.ok()) {
    reply(std::move(done), std::move(refused));
    return;
  }
  const std::int32_t priority = args.priority;
  const LaunchWord ready{Kind::kReady, tag, priority, work.on_host ? kHostsSet : kJobSet, size_of(args)};
  operations_.emplace(tag, Operation{std::move(args), work, std::move(done), {}});
  SRT_CHECK(member_.start(tag));
  if (!sequencer_) {
    unsent_.push_back(ready);
  } else if (const Status status = sequencer_->ready(0, tag, priority); !status.ok()) {
    fail(status);
  }
  flush_later();
}

void OrderedDevice::cancel(TagGroup tags, Status cause) {
  SRT_IN_LOOP(link_.loop());
  for (auto& [tag, operation] : operations_) {
    if (tags.contains(tag)) {
      operation.cause.update(cause);
    }
  }
  for (const OpTag tag : member_.withdraw(tags)) {
    if (sequencer_) {
      sequencer_->withdraw(0, tag);
    } else {
      unsent_.push_back({Kind::kWithdraw, tag, 0});
    }
    flush_later();
  }
}

void OrderedDevice::apply(const Decision& decision) {
  const LaunchNotice& notice = decision.notice;
  const auto place = operations_.find(notice.tag);
  if (!ended_.ok() && (place == operations_.end() || !place->second.placed)) {
    return;
  }
  const bool placed = notice.kind == LaunchNotice::Kind::kPlaced;
  if (place == operations_.end() || !(placed ? member_.placed(notice.tag) : member_.withdrawn(notice.tag))) {
    fail(bug("rank 0 orders tag " + std::to_string(notice.tag.value) + ", which is not ready on this rank"));
    return;
  }
  if (placed) {
    launch(place, decision.more);
    return;
  }
  reply(std::move(place->second.done), place->second.cause);
  operations_.erase(place);
}

void OrderedDevice::launch(std::map<OpTag, Operation>::iterator place, bool more) {
  Operation& operation = place->second;
  operation.launched = true;
  operation.work.more = more;
  inner_->start_work(
      std::move(operation.args), operation.work,
      while_alive([tag = place->first](OrderedDevice& self, const Status& status) { self.ended(tag, status); }));
}

void OrderedDevice::ended(OpTag tag, const Status& status) {
  const auto place = operations_.find(tag);
  SRT_CHECK(place != operations_.end());
  Operation operation = std::move(place->second);
  operations_.erase(place);
  operation.cause.update(status);
  if (!status.ok() && ended_.ok()) {
    fail(status);
    reply(std::move(operation.done), operation.cause);
    return;
  }
  operation.done(operation.cause);
}

// ---- ends ----

void OrderedDevice::on_peer_lost(Rank peer, const Status& status) {
  if (gone_[static_cast<std::size_t>(peer)]) {
    return;
  }
  gone_[static_cast<std::size_t>(peer)] = true;
  if (!ended_.ok()) {
    return;
  }
  // The others launch operations with a place, and so does rank 0 once its messages have left.
  stop(status, [](const Operation& operation) { return operation.placed; });
  if (rank() == 0) {
    unsent_gone_ = peer;
    flush_later();
  }
  grace_ = link_.loop().after(options_.grace, [this, status] {
    grace_ = {};
    stop(status);
    inner_->abort(status);
  });
}

void OrderedDevice::fail(const Status& cause) {
  if (!ended_.ok()) {
    return;
  }
  link_.loop().post(while_alive([cause](OrderedDevice& self) { self.broken_(cause); }));
  stop(cause);
  inner_->abort(cause);
}

void OrderedDevice::stop(const Status& cause, const std::function<bool(const Operation&)>& goes_on) {
  ended_.update(cause);
  for (auto place = operations_.begin(); place != operations_.end();) {
    Operation& operation = place->second;
    if (operation.launched || (goes_on && goes_on(operation))) {
      ++place;
      continue;
    }
    operation.cause.update(cause);
    reply(std::move(operation.done), operation.cause);
    place = operations_.erase(place);
  }
}

void OrderedDevice::abort(Status cause) {
  SRT_IN_LOOP(link_.loop());
  stop(cause);
  link_.loop().cancel(grace_);
  grace_ = {};
  inner_->abort(std::move(cause));
}

}  // namespace sirtaki::net
