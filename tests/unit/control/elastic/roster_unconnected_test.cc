// Members of an elastic job that cannot connect to each other, although the hub hears all of them.
#include <gtest/gtest.h>

#include "tests/unit/control/elastic/roster_fixture.h"

namespace sirtaki::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using Slots = std::vector<int>;
using Ranks = std::vector<Rank>;

class RosterUnconnectedTest : public RosterTest {
 protected:
  // The member could not connect to these ranks of the present epoch.
  void report(int slot, const Ranks& ranks, std::uint64_t step = 5, bool has_state = true) {
    const Status why(Code::kRanksChanged, "rank (host a) has no data connection to rank (host b)");
    regroup(slot, {roster_.epoch(),
                   0,
                   has_state,
                   has_state,
                   ranks.empty() ? Status() : why,
                   {{kSteps, 0, step, StepState::kWorking}},
                   ranks});
  }
  // All members end the epoch; each pair of ranks has not connected.
  void end_epoch(const std::vector<std::pair<Rank, Rank>>& pairs, std::uint64_t step = 5) {
    const Slots members = slots();
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      Ranks ranks;
      for (const auto& [a, b] : pairs) {
        if (static_cast<Rank>(rank) == a || static_cast<Rank>(rank) == b) {
          ranks.push_back(a + b - static_cast<Rank>(rank));
        }
      }
      report(members[rank], ranks, step);
    }
  }
  void start(int size, int min, int max) {
    roster_ = Roster(options(size, min, max));
    form_first(size);
    end_epoch({});  // sets the positions of the streams
  }
  // Causes of the connections that were closed.
  std::vector<std::string> closed() const {
    std::vector<std::string> result;
    for (const Roster::Action& action : actions_) {
      if (const auto* close = std::get_if<Roster::Close>(&action)) {
        result.emplace_back(close->why.text());
      }
    }
    return result;
  }
};

TEST_F(RosterUnconnectedTest, OneOfAPairThatCannotConnectTwiceIsGivenUp) {
  start(3, 1, 3);
  end_epoch({{1, 2}});
  EXPECT_EQ(slots(), (Slots{0, 1, 2})) << "the next attempt may succeed";
  end_epoch({{1, 2}});
  ASSERT_EQ(closed().size(), 1U);
  EXPECT_EQ(closed().front(),
            "rank 2 had no data connection with rank 1 in two epochs in a row, although both reach the coordinator, "
            "and is given up: rank (host a) has no data connection to rank (host b)");
  EXPECT_EQ(slots(), (Slots{0, 1})) << "the youngest goes";
  EXPECT_EQ(roster_.epoch(), Epoch(4));
  EXPECT_NE(roster_.describe().find("expects slot 2"), std::string::npos) << "another process may take its place";
  hello(2, 2);
  regroup(2);
  for (const int slot : {0, 1}) {
    regroup(slot, {roster_.epoch(), last_notice<ChangeWanted>(slot)->number, true, true, {}, {}});
  }
  EXPECT_EQ(slots(), (Slots{0, 1, 2}));
}

TEST_F(RosterUnconnectedTest, EitherEndMayReportItInEitherOrder) {
  for (const bool younger_first : {false, true}) {
    for (const bool same_end : {false, true}) {
      start(3, 1, 0);
      for (const bool second : {false, true}) {
        const bool older_says = !same_end && second;
        const Slots order = younger_first ? Slots{2, 1, 0} : Slots{0, 1, 2};
        for (const int slot : order) {
          report(slot, slot < 2 && (slot == 0) == older_says ? Ranks{1 - slot} : Ranks());
        }
      }
      EXPECT_EQ(slots(), (Slots{0, 2})) << younger_first << same_end;
    }
  }
}

TEST_F(RosterUnconnectedTest, TheCauseIsThatOfTheEndThatHasOne) {
  start(3, 1, 3);
  for (int epoch = 0; epoch < 2; ++epoch) {
    regroup(1, {roster_.epoch(), 0, true, true, {}, {{kSteps, 0, 5, StepState::kWorking}}, {0}});
    report(0, {1});
    report(2, {});
  }
  ASSERT_EQ(closed().size(), 1U);
  EXPECT_NE(closed().front().find("given up: rank (host a) has no data"), std::string::npos) << closed().front();
}

TEST_F(RosterUnconnectedTest, TheMemberInMostPairsGoesThoughItIsTheOldest) {
  start(3, 1, 3);
  end_epoch({{0, 1}, {0, 2}});
  end_epoch({{0, 1}, {0, 2}});
  EXPECT_EQ(closed().size(), 1U);
  EXPECT_EQ(slots(), (Slots{1, 2}));
}

TEST_F(RosterUnconnectedTest, PairsOfOthersAreResolvedToo) {
  start(5, 1, 5);
  end_epoch({{0, 3}, {1, 2}});
  end_epoch({{0, 3}, {1, 2}});
  EXPECT_EQ(closed().size(), 2U);
  EXPECT_EQ(slots(), (Slots{0, 1, 4}));
}

TEST_F(RosterUnconnectedTest, AnotherPairOrAnEpochBetweenGivesNobodyUp) {
  start(3, 1, 3);
  end_epoch({{1, 2}});
  end_epoch({{0, 2}});
  end_epoch({});
  end_epoch({{0, 2}});
  EXPECT_EQ(slots(), (Slots{0, 1, 2}));
  EXPECT_EQ(closed().size(), 0U);
}

TEST_F(RosterUnconnectedTest, AStepThatCountsBetweenGivesNobodyUp) {
  start(3, 1, 3);
  for (std::uint64_t step = 5; step < 20; ++step) {
    end_epoch({{1, 2}}, step);
  }
  EXPECT_EQ(slots(), (Slots{0, 1, 2}));
  EXPECT_EQ(closed().size(), 0U);
}

TEST_F(RosterUnconnectedTest, ALossInOneOfTheEpochsGivesNobodyElseUp) {
  for (const bool second : {false, true}) {
    start(4, 1, 4);
    if (second) {
      end_epoch({{1, 2}});
    }
    report(0, {3});
    report(1, {2, 3});
    lose(3);
    report(2, {1});
    tick(milliseconds(20));
    ASSERT_EQ(slots(), (Slots{0, 1, 2}));
    end_epoch({{1, 2}});
    EXPECT_EQ(slots(), (Slots{0, 1, 2})) << "it is the first epoch behind a loss";
    end_epoch({{1, 2}});
    EXPECT_EQ(slots(), (Slots{0, 1}));
  }
}

TEST_F(RosterUnconnectedTest, AnotherProcessOfTheSlotHasNoPast) {
  start(3, 1, 3);
  end_epoch({{1, 2}});
  lose(2);
  hello(2, 2);
  regroup(2);
  end_epoch({});
  ASSERT_EQ(slots(), (Slots{0, 1, 2}));
  end_epoch({{1, 2}});
  EXPECT_EQ(slots(), (Slots{0, 1, 2}));
}

TEST_F(RosterUnconnectedTest, TooFewLeftGivesNobodyUpUntilTheJobEnds) {
  start(3, 3, 3);
  for (int epoch = 0; epoch < 10; ++epoch) {
    ASSERT_EQ(roster_.phase(), Roster::Phase::kRunning);
    end_epoch({{0, 2}});
  }
  EXPECT_EQ(closed().size(), 0U);
  EXPECT_NE(end().find("10 epochs in a row have ended without a loss"), std::string::npos) << end();
  EXPECT_NE(end().find("rank (host a) has no data connection to rank (host b)"), std::string::npos) << end();
}

TEST_F(RosterUnconnectedTest, ASpareTakesThePlaceAtOnce) {
  start(3, 3, 3);
  hello(3);
  regroup(3);
  end_epoch({{0, 2}});
  end_epoch({{0, 2}});
  EXPECT_EQ(closed().size(), 1U);
  EXPECT_EQ(slots(), (Slots{0, 1, 3}));
}

TEST_F(RosterUnconnectedTest, MoreThanHalfOfAllStay) {
  const std::vector<std::pair<Rank, Rank>> all = {{0, 1}, {0, 2}, {1, 2}};
  start(3, 1, 3);
  for (int epoch = 0; epoch < 9; ++epoch) {
    end_epoch(all);
    ASSERT_EQ(slots(), (Slots{0, 1, 2}));
  }
  end_epoch(all, 6);
  EXPECT_EQ(roster_.phase(), Roster::Phase::kRunning) << "the network between all of them is whole again";
  EXPECT_EQ(closed().size(), 0U);
}

TEST_F(RosterUnconnectedTest, NeitherOfTwoHalvesIsGivenUp) {
  for (const int size : {2, 4}) {
    start(size, 1, size);
    std::vector<std::pair<Rank, Rank>> pairs;
    for (Rank near = 0; near < size / 2; ++near) {
      for (Rank far = size / 2; far < size; ++far) {
        pairs.emplace_back(near, far);
      }
    }
    for (int epoch = 0; epoch < 5; ++epoch) {
      end_epoch(pairs);
      EXPECT_EQ(static_cast<int>(slots().size()), size);
    }
    EXPECT_EQ(closed().size(), 0U);
  }
}

TEST_F(RosterUnconnectedTest, NobodyIsGivenUpWhereThatIsOff) {
  RosterOptions off = options(3, 1, 3);
  off.gives_up_unconnected = false;
  roster_ = Roster(off);
  form_first(3);
  for (int epoch = 0; epoch < 9; ++epoch) {
    end_epoch({{1, 2}});
  }
  EXPECT_EQ(slots(), (Slots{0, 1, 2}));
  EXPECT_EQ(closed().size(), 0U);
}

TEST_F(RosterUnconnectedTest, RanksThatAMemberCannotLackBreakTheProtocol) {
  for (const Ranks& wrong : {Ranks{7}, Ranks{1}, Ranks{0, 0, 0}}) {
    start(3, 1, 3);
    report(1, wrong);
    ASSERT_EQ(closed().size(), 1U);
    EXPECT_NE(closed().front().find("broke the protocol: it named ranks"), std::string::npos) << closed().front();
    report(0, {});
    report(2, {});
    tick(milliseconds(20));
    EXPECT_EQ(slots(), (Slots{0, 2}));
    actions_.clear();
  }
}

TEST_F(RosterUnconnectedTest, TheLastOneWithTheStateStays) {
  start(2, 1, 5);
  lose(1);
  end_epoch({});
  hello(4);
  regroup(4);
  hello(2);
  regroup(2);
  hello(3);
  regroup(3);
  hello(1, 2);
  regroup(1);
  tick(milliseconds(20));
  Slots fresh = slots();
  ASSERT_EQ(fresh.size(), 5U);
  ASSERT_EQ(fresh.front(), 0);
  fresh.erase(fresh.begin());
  for (int epoch = 0; epoch < 2; ++epoch) {
    report(0, {1, 2});
    for (const int slot : fresh) {
      report(slot, {}, 5, false);
    }
  }
  EXPECT_EQ(closed().size(), 2U);
  EXPECT_EQ(slots(), (Slots{0, fresh[2], fresh[3]}));
}

TEST_F(RosterUnconnectedTest, AMemberThatHasToLeaveGoesFirst) {
  start(3, 1, 3);
  end_epoch({{0, 2}});
  leave(0);
  end_epoch({{0, 2}});
  EXPECT_EQ(parted(), Slots{0});
  EXPECT_EQ(slots(), (Slots{1, 2}));
  EXPECT_EQ(closed().size(), 0U);
}

TEST_F(RosterUnconnectedTest, AnEpochThatLastedForLongGivesNobodyUp) {
  start(3, 1, 3);
  end_epoch({{0, 1}});
  tick(minutes(2));
  end_epoch({{0, 1}});
  EXPECT_EQ(slots(), (Slots{0, 1, 2}));
}

}  // namespace
}  // namespace sirtaki::control
