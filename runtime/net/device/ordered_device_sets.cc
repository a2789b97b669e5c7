// OrderedDevice, part: process sets, and the loss of ranks.
#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/device/ordered_device.h"

namespace sirtaki::net {
namespace {

using Kind = LaunchWord::Kind;

Status breach(const LaunchWord& word) {
  return corrupt("it sends word " + std::to_string(static_cast<int>(word.kind)) + " about set " +
                 std::to_string(word.set) + " (" + std::to_string(word.tag.value) + "), which does not wait for it");
}

// The end of sets that do not contain rank 0, which is gone.
Status without_order() {
  return {Code::kPeerLost,
          "rank 0, which orders the operations of process sets on GPUs, is gone. Keep it until the other ranks have "
          "ended theirs, or choose device.data=host",
          {0, ""}};
}

}  // namespace

// The collectives of a process set.
class OrderedDevice::SetDevice final : public DeviceCollectives {
 public:
  SetDevice(OrderedDevice& owner, const std::vector<Rank>& ranks, LaunchSet number)
      : owner_(owner),
        ranks_(ranks),
        rank_(static_cast<Rank>(std::ranges::lower_bound(ranks, owner.rank()) - ranks.begin())),
        number_(number) {}

  Caps caps() const override { return owner_.caps(); }
  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  Rank job_rank(Rank rank) const override { return owner_.job_rank(ranks_[static_cast<std::size_t>(rank)]); }
  Status check(const CollectiveArgs& args) const override { return check_work(args, {}); }
  Status check_work(const CollectiveArgs& args, const DeviceWork& work) const override {
    return work.on_host ? Status(Code::kUnsupported, "a process set does not sum on hosts")
                        : owner_.check_work(args, here(work));
  }
  void start_work(CollectiveArgs args, DeviceWork work, Done done) override {
    SRT_CHECK(!work.on_host);
    owner_.start_work(std::move(args), here(work), std::move(done));
  }
  void cancel(TagGroup tags, Status cause) override { owner_.cancel(tags, std::move(cause)); }
  // NCCL cannot end the work of one set alone.
  void abort(Status cause) override { owner_.abort(std::move(cause)); }

 private:
  DeviceWork here(DeviceWork work) const {
    work.set = number_;
    return work;
  }

  OrderedDevice& owner_;
  const std::vector<Rank> ranks_;
  const Rank rank_;
  const LaunchSet number_;
};

// ---- agreement ----

void OrderedDevice::open_set(std::vector<Rank> ranks, int version, AddSet add, Opened then) {
  SRT_IN_LOOP(link_.loop());
  SRT_CHECK(std::ranges::binary_search(ranks, rank()) && (inner_ || version == 0));
  const auto own = static_cast<LaunchSet>(sets_.size());
  ProcessSet& set = sets_[own];
  set = {std::move(ranks), version != 0, std::move(add), std::move(then)};
  if (!ended_.ok()) {
    end_set(set, ended_);
    return;
  }
  if (!order_lost_.ok()) {
    lose_order_of(set, order_lost_);
    return;
  }
  std::map<Rank, std::uint64_t> blocks;
  for (const Rank rank : set.ranks) {
    blocks[rank / kRanksPerWord] |= std::uint64_t{1} << (rank % kRanksPerWord);
  }
  for (const auto& [block, bits] : blocks) {
    tell({Kind::kRanks, OpTag(bits), block, own});
  }
  tell({Kind::kAble, OpTag(), version, own});
}

Status OrderedDevice::apply_to_set(const LaunchWord& word) {
  const auto place = sets_.find(static_cast<LaunchSet>(word.tag.value));
  if (place == sets_.end() || place->first != word.tag.value) {
    return breach(word);
  }
  ProcessSet& set = place->second;
  if (!ended_.ok() || !set.ended.ok()) {
    return {};
  }
  const bool known = set.number == word.set;
  if (!set.then) {
    return breach(word);
  }
  if (word.kind == Kind::kConnect && set.able && !set.number && word.set >= kFirstProcessSet &&
      by_number_.emplace(word.set, place->first).second) {
    connect_set(set, word.set);
  } else if (word.kind == Kind::kOpen && known) {
    set.device = std::make_unique<SetDevice>(*this, set.ranks, word.set);
    answer(set, {.device = set.device.get()});
  } else if (word.kind == Kind::kRefused && (known || !set.number) && word.number < size()) {
    const Rank by = job_rank(word.number);
    refuse(set, {by, static_cast<int>(word.bytes), set.number.has_value()},
           {Code::kUnavailable, "rank " + std::to_string(by) + " cannot use its device in a process set"});
  } else {
    return breach(word);
  }
  return {};
}

void OrderedDevice::connect_set(ProcessSet& set, LaunchSet number) {
  set.number = number;
  set.add(number);
  inner_->connect_set(number, [weak = std::weak_ptr(self_), number](const Status& status) {
    const auto self = weak.lock();
    if (self && (*self)->ended_.ok() && (*self)->process_set(number).ended.ok()) {
      (*self)->process_set(number).connected = status.ok();
      (*self)->tell({Kind::kConnected, OpTag(), status.ok() ? 1 : 0, number});
    }
  });
}

void OrderedDevice::refuse(ProcessSet& set, const SetOutcome::Refusal& refusal, const Status& why) {
  set.ended = why;
  if (set.number) {
    inner_->drop_set(*set.number, why);
  }
  answer(set, {.refused = refusal});
}

void OrderedDevice::answer(ProcessSet& set, SetOutcome outcome) {
  if (set.then) {
    link_.loop().post([then = std::exchange(set.then, {}), outcome = std::move(outcome)]() mutable { then(outcome); });
  }
}

OrderedDevice::ProcessSet& OrderedDevice::process_set(LaunchSet number) {
  return sets_.at(by_number_.at(number));
}

// ---- ends ----

// Returns the end of the set of an operation.
const Status& OrderedDevice::end_of(const DeviceWork& work) const {
  const LaunchSet number = work.launch_set();
  return number < kFirstProcessSet ? job_ended_ : sets_.at(by_number_.at(number)).ended;
}

void OrderedDevice::end_agreements(const Status& cause) {
  SRT_IN_LOOP(link_.loop());
  for (auto& [own, set] : sets_) {
    if (set.then && !set.number) {
      end_set(set, cause);
    }
  }
}

void OrderedDevice::end_job(const Status& why) {
  if (job_ended_.ok() && inner_) {
    inner_->drop_set(kJobSet, why);
  }
  job_ended_.update(why);
}

void OrderedDevice::end_set(ProcessSet& set, const Status& why) {
  if (!set.ended.ok()) {
    return;
  }
  set.ended = why;
  if (set.number) {
    inner_->drop_set(*set.number, why);
  }
  answer(set, {.ended = why});
}

// Operations with a place are launched already, as on the other ranks, because words come in order.
void OrderedDevice::end_lost_operations() {
  end_operations([this](const Operation& operation) { return end_of(operation.work); });
}

void OrderedDevice::lose_rank(Rank rank) {
  if (!ended_.ok()) {
    return;
  }
  const Rank gone = job_rank(rank);
  if (rank == this->rank()) {
    const Status why(
        Code::kPeerLost,
        "rank " + std::to_string(job_rank(0)) + " orders no operations over NCCL any more; its log says why",
        {job_rank(0), ""});
    lose_order(why, why);
    return;
  }
  const Status why(
      Code::kPeerLost,
      "rank " + std::to_string(gone) + " has left, or its operations over NCCL have ended; its log says why",
      {gone, ""});
  end_job(why);
  for (auto& [own, set] : sets_) {
    if (std::ranges::binary_search(set.ranks, rank)) {
      end_set(set, why);
    }
  }
  end_lost_operations();
}

void OrderedDevice::lose_order(const Status& why) {
  lose_order(why, without_order());
}

void OrderedDevice::lose_order(const Status& why, const Status& of_others) {
  order_lost_ = of_others;
  if (!ended_.ok()) {
    return;
  }
  end_job(why);
  for (auto& [own, set] : sets_) {
    lose_order_of(set, set.ranks.front() == 0 ? why : of_others);
  }
  end_lost_operations();
}

// A set is open once all of its ranks have connected. Ranks that have connected cannot tell, so theirs end; others know
// that nobody uses the device in it, and nobody will. A set with rank 0 can do nothing any more.
void OrderedDevice::lose_order_of(ProcessSet& set, const Status& why) {
  if (set.ended.ok() && !set.connected && set.ranks.front() != 0) {
    refuse(set, {.rank = job_rank(0), .unordered = true}, why);
  } else {
    end_set(set, why);
  }
}

bool OrderedDevice::lost_work_is_launched() const {
  return std::ranges::any_of(operations_, [this](const auto& operation) {
    return operation.first != tag_ && !end_of(operation.second.work).ok();
  });
}

}  // namespace sirtaki::net
