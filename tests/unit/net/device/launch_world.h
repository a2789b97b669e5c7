// LaunchWorld: a small world of ranks that launch operations of overlapping sets, a copy for each of its states, and an
// explorer of all orders of events. It models the parts of LaunchServer and OrderedDevice around the sequencer.
// Used by launch_worlds_test.cc. Not thread-safe.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <unordered_set>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/net/device/launch_order.h"

namespace sirtaki::net::testing {

// The decider about the order of launches.
enum class Order { kOneForAll, kOneForEachSet, kNone };

// An operation of a set, or the making of the connections of a set, which comes before its operations.
struct Item {
  std::size_t set = 0;
  bool connects = false;
};

// The faults that happen once at most, at any time.
enum class Fault { kNone, kStop, kStopInSilence, kDie };

struct Plan {
  int ranks = 0;
  std::vector<std::vector<Rank>> sets;
  std::vector<Item> items = {};
  Order order = Order::kOneForAll;
  Fault fault = Fault::kNone;

  bool takes_part(Rank rank, std::size_t item) const { return std::ranges::binary_search(sets[items[item].set], rank); }
};

// Each set has `each` operations, in front of which its connections are made if `connects`.
inline Plan plan_of(int ranks, std::vector<std::vector<Rank>> sets, int each, bool connects = false,
                    Order order = Order::kOneForAll) {
  Plan plan{ranks, std::move(sets), {}, order, Fault::kNone};
  for (std::size_t set = 0; set < plan.sets.size(); ++set) {
    if (connects) {
      plan.items.push_back({set, true});
    }
    plan.items.insert(plan.items.end(), static_cast<std::size_t>(each), Item{set, false});
  }
  return plan;
}

// The state between two events. A device runs one item at a time, in the order of launches, and an item ends when it is
// the first one on all of its ranks; so does NCCL, whose kernels hold a GPU until those of all peers have arrived. A
// rank that stops ends all of its items. So does a rank in front of whose device is an item of a lost rank, at any time
// as if a deadline had passed. The death of rank 0 takes the decider along.
class State {
 public:
  explicit State(const Plan& plan) : plan_(&plan), reported_(plan.items.size()), able_(plan.sets.size()) {
    SRT_CHECK(plan.items.size() < kStopped);
    const std::size_t deciders = plan.order == Order::kOneForEachSet ? plan.sets.size() : 1;
    for (std::size_t i = 0; i < deciders; ++i) {
      deciders_.push_back({LaunchSequencer(plan.ranks), {}, {}});
      deciders_.back().down.resize(static_cast<std::size_t>(plan.ranks));
      for (const auto& set : plan.sets) {
        deciders_.back().sequencer.add(set);
      }
    }
    members_.resize(static_cast<std::size_t>(plan.ranks));
    for (Member& member : members_) {
      member.started.resize(plan.items.size());
      member.ended.resize(plan.items.size());
      member.failed.resize(plan.items.size());
      member.gone.resize(static_cast<std::size_t>(plan.ranks));
      member.up.resize(deciders);
    }
  }

  struct Event {
    enum class What { kStart, kReport, kDecide, kNotice, kFault, kDeadline, kLineLost } what = What::kStart;
    std::size_t rank = 0;
    std::size_t which = 0;  // item or decider
  };

  std::vector<Event> possible() const {
    std::vector<Event> events;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      for (std::size_t item = 0; item < plan_->items.size(); ++item) {
        if (may_start(rank, item)) {
          events.push_back({Event::What::kStart, rank, item});
        }
      }
      for (std::size_t d = 0; d < deciders_.size(); ++d) {
        if (!members_[rank].up[d].empty() && !undecided_for_ever_) {
          events.push_back({Event::What::kReport, rank, d});
        }
        if (!deciders_[d].down[rank].empty()) {
          events.push_back({Event::What::kNotice, rank, d});
        }
      }
    }
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      const Member& member = members_[rank];
      if (plan_->fault != Fault::kNone && !faulty_) {
        events.push_back({Event::What::kFault, rank, 0});
      }
      if (!member.device.empty() && lost(member, member.device.front())) {
        events.push_back({Event::What::kDeadline, rank, 0});
      }
      if (undecided_for_ever_ && !member.order_lost) {
        events.push_back({Event::What::kLineLost, rank, 0});
      }
    }
    for (std::size_t d = 0; d < deciders_.size(); ++d) {
      if (!deciders_[d].undecided.empty() && !undecided_for_ever_) {
        events.push_back({Event::What::kDecide, 0, d});
      }
    }
    return events;
  }

  void happen(const Event& event) {
    switch (event.what) {
      case Event::What::kStart:
        start(event.rank, event.which);
        break;
      case Event::What::kReport:
        report(event.rank, event.which);
        break;
      case Event::What::kDecide:
        decide(deciders_[event.which]);
        break;
      case Event::What::kNotice: {
        auto& down = deciders_[event.which].down[event.rank];
        const std::size_t word = down.front();
        down.pop_front();
        hear(event.rank, word);
        break;
      }
      case Event::What::kFault:
        faulty_ = true;
        stop(event.rank, plan_->fault);
        break;
      case Event::What::kDeadline:
        stop(event.rank, plan_->fault == Fault::kDie ? Fault::kStop : plan_->fault);
        break;
      case Event::What::kLineLost:
        members_[event.rank].order_lost = true;
        deciders_[0].down[event.rank].clear();
        fail_lost(members_[event.rank]);
        break;
    }
    run_devices();
  }

  // All items of a rank have ended there.
  bool over() const {
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      for (std::size_t item = 0; item < plan_->items.size(); ++item) {
        if (plan_->takes_part(static_cast<Rank>(rank), item) && !members_[rank].ended[item]) {
          return false;
        }
      }
    }
    return true;
  }

  // The items of ranks that have all gone on, and with them the decider, have ended well.
  bool fair() const {
    for (std::size_t item = 0; item < plan_->items.size(); ++item) {
      const auto& ranks = plan_->sets[plan_->items[item].set];
      const auto ends = [this](Rank rank) { return members_[static_cast<std::size_t>(rank)].stopped; };
      const auto fails = [&](Rank rank) { return members_[static_cast<std::size_t>(rank)].failed[item]; };
      if (!undecided_for_ever_ && std::ranges::none_of(ranks, ends) && std::ranges::any_of(ranks, fails)) {
        return false;
      }
    }
    return true;
  }

  // Equal for states from which the same events can follow.
  std::string key() const {
    std::string key;
    const auto add = [&key](const auto& numbers) {
      for (const auto number : numbers) {
        key += static_cast<char>('a' + static_cast<int>(number));
      }
      key += '.';
    };
    for (const Member& member : members_) {
      add(member.started);
      add(member.ended);
      add(member.failed);
      add(member.gone);
      add(std::vector{member.stopped, member.order_lost});
      add(member.device);
      for (const auto& up : member.up) {
        add(up);
      }
    }
    for (const Decider& decider : deciders_) {
      add(decider.undecided);
      for (const auto& down : decider.down) {
        add(down);
      }
    }
    add(sequence_);
    add(std::vector{faulty_, undecided_for_ever_});
    return key;
  }

 private:
  struct Member {
    std::vector<bool> started;
    std::vector<bool> ended;
    std::vector<bool> failed;  // and ended
    std::vector<bool> gone;    // ranks of which this one knows that they are lost
    bool stopped = false;
    bool order_lost = false;
    std::deque<std::size_t> device;           // launched items, the first of which runs
    std::vector<std::deque<std::size_t>> up;  // words on their way to each decider: items, or kStopped
    std::size_t launches = 0;                 // length of the part of sequence_ that is launched or of others
  };
  struct Decider {
    LaunchSequencer sequencer;
    std::vector<std::deque<std::size_t>> down;  // words on their way to each rank: items, or kGone + a rank
    std::vector<std::size_t> undecided;         // complete items, in the order of completion
  };

  bool may_start(std::size_t rank, std::size_t item) const {
    const Member& member = members_[rank];
    if (!plan_->takes_part(static_cast<Rank>(rank), item) || member.started[item] || member.ended[item]) {
      return false;
    }
    for (std::size_t other = 0; other < item; ++other) {
      const bool before = plan_->items[other].connects && plan_->items[other].set == plan_->items[item].set;
      if (before && !members_[rank].ended[other]) {
        return false;
      }
    }
    return true;
  }
  void start(std::size_t rank, std::size_t item) {
    members_[rank].started[item] = true;
    if (lost(members_[rank], item)) {
      fail(members_[rank], item);
    } else if (plan_->order == Order::kNone) {
      launch(rank, item);
    } else {
      members_[rank].up[plan_->order == Order::kOneForAll ? 0 : plan_->items[item].set].push_back(item);
    }
  }
  void report(std::size_t rank, std::size_t d) {
    auto& up = members_[rank].up[d];
    const std::size_t item = up.front();
    up.pop_front();
    Decider& decider = deciders_[d];
    if (item == kStopped) {
      lose(decider, static_cast<Rank>(rank));
      return;
    }
    const std::size_t set = plan_->items[item].set;
    const auto number = static_cast<LaunchSet>(kFirstProcessSet + set);
    if (const auto gone = decider.sequencer.lost_of(number)) {
      decider.down[rank].push_back(kGone + static_cast<std::size_t>(*gone));
      return;
    }
    const std::size_t ranks = plan_->sets[set].size();
    if (plan_->items[item].connects) {
      if (++able_[set] == ranks) {
        decider.sequencer.connect(number);
        decider.undecided.push_back(item);
      }
      return;
    }
    EXPECT_TRUE(decider.sequencer.ready(static_cast<Rank>(rank), {OpTag(item), 0, number}).ok());
    if (++reported_[item] == ranks) {
      decider.undecided.push_back(item);
    }
  }
  // Mirrors LaunchServer.
  void lose(Decider& decider, Rank rank) {
    std::vector<bool> told(members_.size());
    for (const LaunchSet set : decider.sequencer.lose(rank)) {
      for (const Rank one : decider.sequencer.ranks_of(set)) {
        told[static_cast<std::size_t>(one)] = true;
      }
    }
    for (std::size_t one = 0; one < told.size(); ++one) {
      if (told[one] && !members_[one].stopped) {
        decider.down[one].push_back(kGone + static_cast<std::size_t>(rank));
      }
    }
  }
  void decide(Decider& decider) {
    decider.undecided.clear();
    for (const LaunchNotice& notice : decider.sequencer.take()) {
      std::size_t item = notice.tag.value;
      if (notice.kind == LaunchNotice::Kind::kConnect) {
        const auto set = static_cast<std::size_t>(notice.set - kFirstProcessSet);
        const auto connects = [set](const Item& one) { return one.connects && one.set == set; };
        item = static_cast<std::size_t>(std::ranges::find_if(plan_->items, connects) - plan_->items.begin());
      }
      sequence_.push_back(item);
      for (const Rank rank : decider.sequencer.ranks_of(notice.set)) {
        decider.down[static_cast<std::size_t>(rank)].push_back(item);
      }
    }
  }
  // The next methods mirror OrderedDevice.
  bool lost(const Member& member, std::size_t item) const {
    const auto& ranks = plan_->sets[plan_->items[item].set];
    const auto gone = [&member](Rank rank) { return member.gone[static_cast<std::size_t>(rank)]; };
    return member.order_lost || std::ranges::any_of(ranks, gone);
  }
  static void fail(Member& member, std::size_t item) { member.ended[item] = member.failed[item] = true; }
  void fail_lost(Member& member) {
    for (std::size_t item = 0; item < plan_->items.size(); ++item) {
      const bool launched = std::ranges::find(member.device, item) != member.device.end();
      if (member.started[item] && !member.ended[item] && !launched && lost(member, item)) {
        fail(member, item);
      }
    }
  }
  void hear(std::size_t rank, std::size_t word) {
    Member& member = members_[rank];
    if (member.stopped) {
      return;
    }
    if (word < kStopped) {
      EXPECT_FALSE(member.ended[word]) << "words come in order";
      launch(rank, word);
    } else {
      member.gone[word - kGone] = true;
      fail_lost(member);
    }
  }
  void stop(std::size_t rank, Fault how) {
    Member& member = members_[rank];
    member.stopped = true;
    for (std::size_t item = 0; item < plan_->items.size(); ++item) {
      if (plan_->takes_part(static_cast<Rank>(rank), item) && !member.ended[item]) {
        fail(member, item);
      }
    }
    member.device.clear();
    if (how == Fault::kDie) {
      member.up[0].clear();
      member.order_lost = true;
      deciders_[0].down[rank].clear();
      undecided_for_ever_ = undecided_for_ever_ || rank == 0;
    }
    if (how != Fault::kStopInSilence) {
      member.up[0].push_back(kStopped);
    }
  }

  // In the order of the sequence, if there is one.
  void launch(std::size_t rank, std::size_t item) {
    Member& member = members_[rank];
    if (plan_->order == Order::kOneForAll) {
      const auto place = std::find(sequence_.begin(), sequence_.end(), item) - sequence_.begin();
      EXPECT_GE(static_cast<std::size_t>(place), member.launches);
      member.launches = static_cast<std::size_t>(place) + 1;
    }
    member.device.push_back(item);
  }
  void run_devices() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t item = 0; item < plan_->items.size(); ++item) {
        const auto first_on = [&](Rank rank) {
          const auto& device = members_[static_cast<std::size_t>(rank)].device;
          return !device.empty() && device.front() == item;
        };
        const auto& ranks = plan_->sets[plan_->items[item].set];
        if (std::ranges::all_of(ranks, first_on)) {
          for (const Rank rank : ranks) {
            members_[static_cast<std::size_t>(rank)].device.pop_front();
            members_[static_cast<std::size_t>(rank)].ended[item] = true;
          }
          moved = true;
        }
      }
    }
  }

  static constexpr std::size_t kStopped = 100;  // above all items; key() has room for it
  static constexpr std::size_t kGone = 101;

  const Plan* plan_;
  bool faulty_ = false;
  bool undecided_for_ever_ = false;    // rank 0 is dead
  std::vector<std::size_t> reported_;  // number of ranks, for each operation
  std::vector<std::size_t> able_;      // number of ranks of each set that are ready to connect
  std::vector<Member> members_;
  std::vector<Decider> deciders_;
  std::vector<std::size_t> sequence_;
};

// All orders of events, each state once.
class Explorer {
 public:
  explicit Explorer(const Plan& plan) { visit(State(plan)); }

  std::size_t states() const { return seen_.size(); }
  // The number of states in which nothing can happen any more although items have not ended.
  int hangs() const { return hangs_; }
  // The number of ends in which a fault has reached items that it does not concern.
  int unfair() const { return unfair_; }

 private:
  void visit(State first) {
    std::vector<State> left{std::move(first)};
    while (!left.empty()) {
      const State state = std::move(left.back());
      left.pop_back();
      const std::vector<State::Event> events = state.possible();
      hangs_ += events.empty() && !state.over() ? 1 : 0;
      unfair_ += events.empty() && !state.fair() ? 1 : 0;
      for (const State::Event& event : events) {
        State next = state;
        next.happen(event);
        if (seen_.insert(next.key()).second) {
          left.push_back(std::move(next));
        }
      }
    }
  }

  std::unordered_set<std::string> seen_;
  int hangs_ = 0;
  int unfair_ = 0;
};

}  // namespace sirtaki::net::testing
