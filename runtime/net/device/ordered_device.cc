#include "runtime/net/device/ordered_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::net {
namespace {

using Kind = LaunchWord::Kind;

}  // namespace

OrderedDevice::OrderedDevice(PointToPoint& link, std::unique_ptr<DeviceCollectives> inner, LaunchServer* server,
                             const OrderedOptions& options, std::function<void(const Status&)> broken)
    : link_(link), inner_(std::move(inner)), options_(options), broken_(std::move(broken)), server_(server) {
  SRT_IN_LOOP(link_.loop());
  SRT_CHECK((rank() == 0) == (server_ != nullptr));
  const auto lost = [this](Rank peer, const Status& status) { on_peer_lost(peer, status); };
  const auto failed = [this](const Status& status) { fail(status); };
  if (server_ == nullptr) {
    line_.emplace(
        link_, options_.tag,
        LaunchLine::Events{[this](Rank /*first*/, std::span<const LaunchWord> words) { return apply_all(words); }, lost,
                           failed});
    return;
  }
  server_->attach({[this](std::span<const LaunchWord> words) {
                     if (const Status status = apply_all(words); !status.ok()) {
                       fail(status);
                     }
                   },
                   lost, failed});
}

OrderedDevice::~OrderedDevice() {
  self_.reset();
  link_.loop().cancel(grace_);
  if (server_ != nullptr) {
    server_->detach();
  }
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

void OrderedDevice::tell(const LaunchWord& word) {
  if (server_ != nullptr) {
    if (const Status status = server_->take(word); !status.ok()) {
      fail(status);
    }
    return;
  }
  unsent_.push_back(word);
  if (!std::exchange(flush_posted_, true)) {
    link_.loop().post(while_alive([](OrderedDevice& self) {
      self.flush_posted_ = false;
      self.flush();
    }));
  }
}

void OrderedDevice::flush() {
  const std::vector<LaunchWord> words = std::exchange(unsent_, {});
  if (!first_is_gone_) {
    line_->send(0, words, {});
  }
}

Status OrderedDevice::apply_all(std::span<const LaunchWord> words) {
  Status status;
  for (std::size_t i = 0; status.ok() && i < words.size(); ++i) {
    status = apply(words[i]);
  }
  return status;
}

Status OrderedDevice::apply(const LaunchWord& word) {
  switch (word.kind) {
    case Kind::kPlaced:
      place(word.tag, word.number == 1);
      return {};
    case Kind::kWithdrawn:
      withdrawn(word.tag);
      return {};
    case Kind::kGone:
      if (word.number < size()) {
        const Rank gone = job_rank(word.number);
        on_peer_lost(word.number, {Code::kPeerLost, "rank " + std::to_string(gone) + " is gone", {gone, ""}});
        return {};
      }
      break;
    default:
      break;
  }
  return corrupt("it sends word " + std::to_string(static_cast<int>(word.kind)) + " with number " +
                 std::to_string(word.number) + ", which only the other side may send");
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
  const LaunchWord ready{Kind::kReady, tag, args.priority, work.on_host ? kHostsSet : kJobSet,
                         std::max(args.in.size(), args.out.size())};
  operations_.emplace(tag, Operation{std::move(args), work, std::move(done), {}});
  SRT_CHECK(member_.start(tag));
  tell(ready);
}

void OrderedDevice::cancel(TagGroup tags, Status cause) {
  SRT_IN_LOOP(link_.loop());
  for (auto& [tag, operation] : operations_) {
    if (tags.contains(tag)) {
      operation.cause.update(cause);
    }
  }
  for (const OpTag tag : member_.withdraw(tags)) {
    tell({Kind::kWithdraw, tag, 0});
  }
}

// Returns the operation that a decision is about; none after an error, or if it has ended here with this object.
std::map<OpTag, OrderedDevice::Operation>::iterator OrderedDevice::decided(OpTag tag, bool placed) {
  const auto found = operations_.find(tag);
  if (found == operations_.end() && !ended_.ok()) {
    return found;
  }
  if (found == operations_.end() || !(placed ? member_.placed(tag) : member_.withdrawn(tag))) {
    fail(bug("rank 0 orders tag " + std::to_string(tag.value) + ", which is not ready on this rank"));
    return operations_.end();
  }
  return found;
}

void OrderedDevice::place(OpTag tag, bool more) {
  if (const auto found = decided(tag, true); found != operations_.end()) {
    launch(found, more);
  }
}

void OrderedDevice::withdrawn(OpTag tag) {
  if (const auto found = decided(tag, false); found != operations_.end()) {
    reply(std::move(found->second.done), found->second.cause);
    operations_.erase(found);
  }
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
  first_is_gone_ = first_is_gone_ || peer == 0;
  if (!ended_.ok()) {
    return;
  }
  // The others launch operations with a place, and so does rank 0 once its messages have left.
  stop(status, [this](OpTag tag) { return server_ != nullptr && server_->has_placed(tag); });
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

void OrderedDevice::stop(const Status& cause, const std::function<bool(OpTag)>& goes_on) {
  ended_.update(cause);
  if (server_ != nullptr) {
    server_->stop();
  }
  for (auto place = operations_.begin(); place != operations_.end();) {
    Operation& operation = place->second;
    if (operation.launched || (goes_on && goes_on(place->first))) {
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
