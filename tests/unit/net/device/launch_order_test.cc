// The agreement on an order of launches: every rank starts operations in its own order, and messages are late.
#include "runtime/net/device/launch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <string>

namespace sirtaki::net {
namespace {

using Kind = LaunchNotice::Kind;

std::vector<OpTag> placed(const std::vector<LaunchNotice>& notices) {
  std::vector<OpTag> tags;
  for (const LaunchNotice& notice : notices) {
    if (notice.kind == Kind::kPlaced) {
      tags.push_back(notice.tag);
    }
  }
  return tags;
}

TEST(LaunchOrder, WaitsForAllRanks) {
  LaunchSequencer order(3);
  EXPECT_TRUE(order.ready(0, {OpTag(1), 5}).ok());
  EXPECT_TRUE(order.ready(2, {OpTag(1), 4}).ok());
  EXPECT_TRUE(order.take().empty());
  EXPECT_TRUE(order.ready(1, {OpTag(1), 6}).ok());
  EXPECT_EQ(order.take(), (std::vector<LaunchNotice>{{Kind::kPlaced, OpTag(1)}}));
  EXPECT_TRUE(order.take().empty()) << "each decision is returned once";
  EXPECT_EQ(order.waiting(), 0U);
}

TEST(LaunchOrder, PlacesAreByUrgencyThenByTime) {
  LaunchSequencer order(2);
  for (const auto& [tag, priority] : {std::pair(1, 7), {2, 7}, {3, -2}, {4, 7}}) {
    for (const Rank rank : {1, 0}) {
      EXPECT_TRUE(order.ready(rank, {OpTag(static_cast<std::uint64_t>(tag)), priority}).ok());
    }
  }
  EXPECT_EQ(placed(order.take()), (std::vector<OpTag>{OpTag(3), OpTag(1), OpTag(2), OpTag(4)}));
}

TEST(LaunchOrder, ARankThatIsReadyTwiceIsAnError) {
  LaunchSequencer order(2);
  EXPECT_TRUE(order.ready(1, {OpTag(1), 0}).ok());
  EXPECT_EQ(order.ready(1, {OpTag(1), 0}).code(), Code::kBug);
}

TEST(LaunchOrder, TheLargestSizeCounts) {
  LaunchSequencer order(2);
  EXPECT_TRUE(order.ready(1, {OpTag(1), 0, kHostsSet, 8}).ok());
  EXPECT_TRUE(order.ready(0, {OpTag(1), 0, kHostsSet, 4}).ok());
  EXPECT_EQ(order.take(), (std::vector<LaunchNotice>{{Kind::kPlaced, OpTag(1), kHostsSet, -1, 8}}));
}

TEST(LaunchOrder, RanksThatDifferInTheSetAreAnError) {
  LaunchSequencer order(2);
  EXPECT_TRUE(order.ready(1, {OpTag(1), 0, kHostsSet}).ok());
  EXPECT_EQ(order.ready(0, {OpTag(1), 0, kJobSet}).code(), Code::kBug);
}

TEST(LaunchOrder, ASetWaitsForItsRanksOnly) {
  LaunchSequencer order(4);
  const LaunchSet set = order.add({1, 3});
  EXPECT_EQ(set, kFirstProcessSet);
  EXPECT_EQ(order.add({0, 1}), kFirstProcessSet + 1);
  EXPECT_EQ(order.add({1, 3}), set) << "known already";
  EXPECT_TRUE(order.contains(set, 3) && !order.contains(set, 2) && order.contains(kHostsSet, 2));
  EXPECT_FALSE(order.contains(99, 0));
  EXPECT_TRUE(order.ready(3, {OpTag(1), 0, set}).ok());
  EXPECT_TRUE(order.take().empty());
  EXPECT_TRUE(order.ready(1, {OpTag(1), 0, set}).ok());
  EXPECT_EQ(order.take(), (std::vector<LaunchNotice>{{Kind::kPlaced, OpTag(1), set}}));
  EXPECT_EQ(order.ready(2, {OpTag(2), 0, set}).code(), Code::kBug) << "it does not belong to the set";
  EXPECT_EQ(order.ready(0, {OpTag(2), 0, 99}).code(), Code::kBug);
}

TEST(LaunchOrder, ConnectionsHaveAPlace) {
  LaunchSequencer order(2);
  const LaunchSet set = order.add({0, 1});
  for (const Rank rank : {0, 1}) {
    EXPECT_TRUE(order.ready(rank, {OpTag(1), 0, kJobSet}).ok());
  }
  order.connect(set);
  EXPECT_EQ(order.take(),
            (std::vector<LaunchNotice>{{Kind::kConnect, OpTag(), set}, {Kind::kPlaced, OpTag(1), kJobSet}}));
}

TEST(LaunchOrder, ASetThatHasLostARankGetsNoPlaces) {
  LaunchSequencer order(3);
  const LaunchSet left = order.add({0, 1});
  const LaunchSet lost = order.add({1, 2});
  EXPECT_TRUE(order.ready(1, {OpTag(1), 0, lost}).ok());
  EXPECT_TRUE(order.ready(2, {OpTag(1), 0, lost}).ok());
  EXPECT_TRUE(order.ready(1, {OpTag(2), 0, left}).ok());
  order.connect(lost);
  order.lose(2);
  EXPECT_EQ(order.lost_of(lost), 2);
  EXPECT_EQ(order.lost_of(kJobSet), 2);
  EXPECT_EQ(order.lost_of(left), std::nullopt);
  EXPECT_EQ(order.lost_of(order.add({0, 2})), 2) << "made later";
  EXPECT_TRUE(order.ready(1, {OpTag(3), 0, lost}).ok()) << "the rank may not know of it yet";
  EXPECT_TRUE(order.ready(0, {OpTag(2), 0, left}).ok());
  EXPECT_EQ(order.take(), (std::vector<LaunchNotice>{{Kind::kPlaced, OpTag(2), left}}));
  EXPECT_EQ(order.waiting(), 0U);
}

TEST(LaunchOrder, AWithdrawnOperationHasNoPlace) {
  LaunchSequencer order(2);
  EXPECT_TRUE(order.ready(0, {OpTag(1), 0}).ok());
  EXPECT_TRUE(order.ready(1, {OpTag(1), 0}).ok());
  order.withdraw(1, OpTag(1));
  EXPECT_EQ(order.take(), (std::vector<LaunchNotice>{{Kind::kWithdrawn, OpTag(1), kJobSet, 1}}));
  order.withdraw(0, OpTag(1));
  EXPECT_EQ(order.take(), (std::vector<LaunchNotice>{{Kind::kWithdrawn, OpTag(1), kJobSet, 0}}));
  EXPECT_EQ(order.waiting(), 0U);
}

TEST(LaunchOrder, AnOperationWithAPlaceIsNotWithdrawn) {
  LaunchSequencer order(2);
  EXPECT_TRUE(order.ready(0, {OpTag(1), 0}).ok());
  EXPECT_TRUE(order.ready(1, {OpTag(1), 0}).ok());
  EXPECT_EQ(order.take().size(), 1U);
  order.withdraw(1, OpTag(1));
  EXPECT_TRUE(order.take().empty());
}

TEST(LaunchOrder, AMemberReportsOnce) {
  LaunchMember member;
  EXPECT_TRUE(member.start(OpTag(1)));
  EXPECT_FALSE(member.start(OpTag(1)));
  EXPECT_TRUE(member.start(OpTag(2)));
  EXPECT_FALSE(member.withdrawn(OpTag(1))) << "no withdrawal was requested";
  EXPECT_EQ(member.withdraw(OpTag(1)), std::vector<OpTag>{OpTag(1)});
  EXPECT_TRUE(member.withdraw(OpTag(1)).empty()) << "the withdrawal is reported already";
  EXPECT_TRUE(member.withdrawn(OpTag(1)));
  EXPECT_FALSE(member.placed(OpTag(1)));
  EXPECT_TRUE(member.placed(OpTag(2)));
  EXPECT_TRUE(member.start(OpTag(2))) << "its tag is free again";
  EXPECT_EQ(member.withdraw({OpTag(), 0}), std::vector<OpTag>{OpTag(2)});
}

// ---- ranks that start and cancel operations, and receive decisions, in random order ----

struct Report {
  bool ready = false;  // false: a withdrawal
  OpTag tag;
  std::int32_t priority = 0;
};

class Job {
 public:
  Job(std::uint64_t seed, int ranks, int tags) : random_(seed), sequencer_(ranks), ranks_(ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      members_.emplace_back();
      for (int tag = 1; tag <= tags; ++tag) {
        members_.back().to_start.emplace_back(static_cast<std::uint64_t>(tag));
      }
      std::ranges::shuffle(members_.back().to_start, random_);
    }
    std::bernoulli_distribution is_cancelled(0.3);
    for (int tag = 1; tag <= tags; ++tag) {
      if (is_cancelled(random_)) {
        cancelled_.insert(OpTag(static_cast<std::uint64_t>(tag)));
      }
    }
  }

  void run() {
    std::vector<Rank> busy;
    do {
      for (const LaunchNotice& notice : sequencer_.take()) {
        for (Rank rank = 0; rank < ranks_; ++rank) {
          if (notice.kind == Kind::kPlaced || notice.to == rank) {
            at(rank).received.push_back(notice);
          }
        }
      }
      busy.clear();
      for (Rank rank = 0; rank < ranks_; ++rank) {
        if (act(rank, false)) {
          busy.push_back(rank);
        }
      }
      if (!busy.empty()) {
        act(busy[random_() % busy.size()], true);
      }
    } while (!busy.empty());
  }

  void check() {
    for (Member& member : members_) {
      EXPECT_EQ(member.launched, members_[0].launched);
      EXPECT_EQ(member.launched.size() + member.withdrawn.size(), member.started);
      for (const OpTag tag : member.withdrawn) {
        EXPECT_TRUE(cancelled_.contains(tag));
      }
    }
    EXPECT_EQ(sequencer_.waiting(), 0U);
  }

 private:
  struct Member {
    LaunchMember state;
    std::vector<OpTag> to_start;
    std::deque<Report> sent;
    std::deque<LaunchNotice> received;
    std::set<OpTag> given_up;
    std::vector<OpTag> launched;
    std::set<OpTag> withdrawn;
    std::size_t started = 0;
  };
  Member& at(Rank rank) { return members_[static_cast<std::size_t>(rank)]; }

  // Performs a random possible action of the rank if `really`; returns false if there is none.
  bool act(Rank rank, bool really) {
    Member& member = at(rank);
    std::vector<int> can;
    std::vector<OpTag> may_give_up;
    std::ranges::set_difference(cancelled_, member.given_up, std::back_inserter(may_give_up));
    for (const auto& [what, able] : {std::pair(0, !member.to_start.empty()),
                                     {1, !may_give_up.empty()},
                                     {2, !member.sent.empty()},
                                     {3, !member.received.empty()}}) {
      if (able) {
        can.push_back(what);
      }
    }
    if (can.empty() || !really) {
      return !can.empty();
    }
    switch (can[random_() % can.size()]) {
      case 0:
        start(member);
        break;
      case 1:
        give_up(member, may_give_up[random_() % may_give_up.size()]);
        break;
      case 2:
        deliver_report(rank, member);
        break;
      default:
        deliver_notice(member);
    }
    return true;
  }

  void start(Member& member) {
    const OpTag tag = member.to_start.back();
    member.to_start.pop_back();
    if (!member.given_up.contains(tag)) {
      ++member.started;
      EXPECT_TRUE(member.state.start(tag));
      member.sent.push_back({true, tag, static_cast<std::int32_t>(random_() % 3)});
    }
  }
  void give_up(Member& member, OpTag tag) {
    member.given_up.insert(tag);
    for (const OpTag named : member.state.withdraw(tag)) {
      member.sent.push_back({false, named});
    }
  }
  void deliver_report(Rank rank, Member& member) {
    const Report report = member.sent.front();
    member.sent.pop_front();
    if (report.ready) {
      EXPECT_TRUE(sequencer_.ready(rank, {report.tag, report.priority}).ok());
    } else {
      sequencer_.withdraw(rank, report.tag);
    }
  }
  void deliver_notice(Member& member) {
    const LaunchNotice notice = member.received.front();
    member.received.pop_front();
    if (notice.kind == Kind::kPlaced) {
      EXPECT_TRUE(member.state.placed(notice.tag));
      member.launched.push_back(notice.tag);
    } else {
      EXPECT_TRUE(member.state.withdrawn(notice.tag));
      EXPECT_TRUE(member.withdrawn.insert(notice.tag).second);
    }
  }

  std::mt19937_64 random_;
  LaunchSequencer sequencer_;
  const int ranks_;
  std::vector<Member> members_;
  std::set<OpTag> cancelled_;  // by all ranks, each at some time
};

TEST(LaunchOrder, IsTheSameOnAllRanksForRandomSchedules) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Job job(seed, 1 + static_cast<int>(seed % 5), 25);
    job.run();
    job.check();
    if (HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace sirtaki::net
