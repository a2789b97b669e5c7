#include "runtime/net/device/ordered_device.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::net {
namespace {

using Kind = LaunchWord::Kind;

// A size that no group has room for.
constexpr std::uint64_t kAlone = std::numeric_limits<std::uint64_t>::max();

}  // namespace

OrderedDevice::OrderedDevice(PointToPoint& link, std::unique_ptr<SetCollectives> inner, LaunchServer* server, OpTag tag,
                             std::function<void(const Status&)> broken)
    : link_(link), inner_(std::move(inner)), tag_(tag), broken_(std::move(broken)), server_(server) {
  SRT_IN_LOOP(link_.loop());
  SRT_CHECK((rank() == 0) == (server_ != nullptr));
  if (server_ == nullptr) {
    line_.emplace(
        link_, tag_,
        LaunchLine::Events{[this](Rank /*first*/, std::span<const LaunchWord> words) { return apply_all(words); },
                           [this](Rank /*first*/, const Status& why) { lose_order(why); },
                           [this](const Status& status) { fail(status); }});
    return;
  }
  server_->attach({[this](std::span<const LaunchWord> words) {
                     if (const Status status = apply_all(words); !status.ok()) {
                       fail(status);
                     }
                   },
                   [this](const Status& status) { abort(status); }});
}

OrderedDevice::~OrderedDevice() {
  self_.reset();
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
  Caps caps = inner_ ? inner_->caps() : Caps();
  caps.ordered = false;
  return caps;
}

bool OrderedDevice::idle() const {
  const auto connects = [](const auto& set) { return set.second.then && set.second.number; };
  return operations_.empty() && std::ranges::none_of(sets_, connects);
}

void OrderedDevice::reply(Done done, Status status) {
  link_.loop().post([moved = std::move(done), status = std::move(status)]() mutable { moved(status); });
}

// ---- messages ----

void OrderedDevice::tell(const LaunchWord& word) {
  if (server_ != nullptr) {
    server_->take(word);
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
  if (order_lost_.ok()) {
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
      if (decided(word.tag, true) != operations_.end()) {
        if (!joins_group(word.tag)) {
          return corrupt("it groups tag " + std::to_string(word.tag.value) + " with operations of another set");
        }
        group_.push_back(word.tag);
        if (word.number == 0) {
          launch_group();
        }
      }
      return {};
    case Kind::kWithdrawn:
      withdrawn(word.tag);
      return {};
    case Kind::kGone:
      if (word.number < size()) {
        lose_rank(word.number);
        return {};
      }
      break;
    case Kind::kConnect:
    case Kind::kOpen:
    case Kind::kRefused:
      return apply_to_set(word);
    default:
      break;
  }
  return corrupt("it sends word " + std::to_string(static_cast<int>(word.kind)) + " with number " +
                 std::to_string(word.number) + ", which only the other side may send");
}

// ---- operations ----

Status OrderedDevice::check_work(const CollectiveArgs& args, const DeviceWork& work) const {
  return inner_ ? inner_->check_work(args, work) : Status(Code::kUnsupported, "this rank cannot use its device");
}

void OrderedDevice::start_work(CollectiveArgs args, DeviceWork work, Done done) {
  SRT_IN_LOOP(link_.loop());
  Status refused = ended_;
  refused.update(end_of(work));
  refused.update(check_work(args, work));
  const OpTag tag = args.tag;
  if (refused.ok() && operations_.contains(tag)) {
    refused = invalid_argument("tag " + std::to_string(tag.value) + " is already in flight");
  }
  if (!refused.ok()) {
    reply(std::move(done), std::move(refused));
    return;
  }
  const LaunchWord ready{Kind::kReady, tag, args.priority, work.launch_set(),
                         std::max(args.in.size(), args.out.size())};
  operations_.emplace(tag, Operation{std::move(args), work, std::move(done), {}});
  SRT_CHECK(member_.start(tag));
  tell(ready);
}

// The tag of the messages stands for the connection of the job, since no operation has it.
void OrderedDevice::connect(Done done) {
  SRT_IN_LOOP(link_.loop());
  Status refused = ended_;
  refused.update(job_ended_);
  if (!refused.ok()) {
    reply(std::move(done), std::move(refused));
    return;
  }
  SRT_CHECK(inner_ && member_.start(tag_));
  operations_.emplace(tag_, Operation{{}, {}, std::move(done), {}});
  tell({Kind::kReady, tag_, std::numeric_limits<std::int32_t>::min(), kJobSet, kAlone});
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

// Returns the operation that a decision is about; none after an error.
OrderedDevice::Operations::iterator OrderedDevice::decided(OpTag tag, bool placed) {
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

// Returns whether an operation may be the next one of the group; the connection of the job is alone.
bool OrderedDevice::joins_group(OpTag tag) const {
  if (group_.empty()) {
    return true;
  }
  const auto set_of = [this](OpTag one) { return operations_.at(one).work.launch_set(); };
  return set_of(tag) == set_of(group_.front()) && tag != tag_ && group_.front() != tag_;
}

void OrderedDevice::withdrawn(OpTag tag) {
  if (const auto found = decided(tag, false); found != operations_.end()) {
    reply(std::move(found->second.done), found->second.cause);
    operations_.erase(found);
  }
}

// The group is complete, so the inner collectives never wait for the rest of one.
void OrderedDevice::launch_group() {
  const std::vector<OpTag> tags = std::exchange(group_, {});
  for (const OpTag tag : tags) {
    Operation& operation = operations_.at(tag);
    operation.launched = true;
    operation.work.more = tag != tags.back();
    Done over = while_alive([tag](OrderedDevice& self, const Status& status) { self.ended(tag, status); });
    if (tag == tag_) {
      inner_->connect_set(kJobSet, std::move(over));
    } else {
      inner_->start_work(std::move(operation.args), operation.work, std::move(over));
    }
  }
}

void OrderedDevice::ended(OpTag tag, const Status& status) {
  const auto place = operations_.find(tag);
  SRT_CHECK(place != operations_.end());
  Operation operation = std::move(place->second);
  operations_.erase(place);
  operation.cause.update(status);
  if (status.ok() || !ended_.ok() || tag == tag_) {
    operation.done(operation.cause);
    return;
  }
  if (!end_of(operation.work).ok() || lost_work_is_launched()) {
    stop(status);
    inner_->abort(status);
  } else {
    fail(status);
  }
  reply(std::move(operation.done), operation.cause);
}

// ---- ends ----

void OrderedDevice::fail(const Status& cause) {
  if (!ended_.ok()) {
    return;
  }
  link_.loop().post(while_alive([cause](OrderedDevice& self) { self.broken_(cause); }));
  stop(cause);
  if (inner_) {
    inner_->abort(cause);
  }
}

void OrderedDevice::stop(const Status& cause) {
  if (!ended_.ok()) {
    return;
  }
  ended_ = cause;
  tell({Kind::kStopped, OpTag()});
  for (auto& [own, set] : sets_) {
    answer(set, {.ended = cause});
  }
  end_operations([&cause](const Operation& /*operation*/) { return cause; });
}

void OrderedDevice::end_operations(const std::function<Status(const Operation&)>& cause) {
  for (auto place = operations_.begin(); place != operations_.end();) {
    Operation& operation = place->second;
    const Status end = operation.launched ? Status() : cause(operation);
    if (end.ok()) {
      ++place;
      continue;
    }
    operation.cause.update(end);
    reply(std::move(operation.done), operation.cause);
    static_cast<void>(member_.placed(place->first));  // its tag may be used again
    std::erase(group_, place->first);
    place = operations_.erase(place);
  }
}

void OrderedDevice::abort(Status cause) {
  SRT_IN_LOOP(link_.loop());
  stop(cause);
  if (inner_) {
    inner_->abort(std::move(cause));
  }
}

}  // namespace sirtaki::net
