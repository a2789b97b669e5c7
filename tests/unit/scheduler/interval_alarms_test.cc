// What the interval controller makes of alarms, and drills in which one rank or all go wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tests/unit/scheduler/interval_training.h"

namespace sirtaki::scheduler::interval {
namespace {

constexpr int kDrillRounds = 3;

// After a warm-up of the guards.
class Drill : public testing::Test {
 protected:
  Drill() { training_.rounds(60); }

  // Rounds with the edit until the rank does not count.
  int rounds_until_excluded(std::size_t rank, const std::function<void(RoundStats&)>& edit) {
    training_.edit = edit;
    for (int round = 1; round <= kDrillRounds; ++round) {
      if (training_.round().verdict.weights.at(rank) == 0) {
        return round;
      }
    }
    return kDrillRounds + 1;
  }

  Training training_{"8:delay=2"};
};

TEST_F(Drill, NotANumberOnOneRank) {
  const int rounds = rounds_until_excluded(2, [](RoundStats& stats) { stats.ranks[2].finite = false; });
  EXPECT_LE(rounds, kDrillRounds);
  EXPECT_EQ(training_.current().mode, Mode::kLocal);
  training_.edit = [](RoundStats&) {};
  EXPECT_EQ(training_.round().verdict.weights, (std::vector<std::int64_t>{1, 1, 1, 1}));
}

TEST_F(Drill, ANormAHundredTimesAsLargeOnOneRank) {
  const auto edit = [](RoundStats& stats) {
    stats.ranks[1].norm2 *= 1e4;
    stats.mean_norm2 *= 600;
  };
  RoundStats next = training_.stats();
  edit(next);
  EXPECT_EQ(training_.controller().weight_of(1, next.ranks[1], next.lr_pico, training_.current().steps), 0)
      << "the rank itself knows before it sends";
  EXPECT_LE(rounds_until_excluded(1, edit), kDrillRounds);
  EXPECT_EQ(training_.current().mode, Mode::kLocal);
  EXPECT_EQ(training_.current().steps, 8) << "the others go on";
}

TEST_F(Drill, NotANumberOnAllRanks) {
  training_.edit = [](RoundStats& stats) {
    for (RankReport& report : stats.ranks) {
      report.finite = false;
    }
  };
  const Decision decision = training_.round();
  ASSERT_EQ(decision.verdict.alarms.size(), 1U);
  EXPECT_EQ(decision.verdict.alarms[0], (Alarm{Guard::kNonFinite, Level::kRed, Action::kRollBack}));
  EXPECT_EQ(decision.interval.mode, Mode::kDrain);
  EXPECT_EQ(decision.interval.reason, Reason::kGuardNonFinite);
  EXPECT_EQ(training_.current().mode, Mode::kSync);
  const std::int64_t until = training_.step() + 100;
  while (training_.step() + Training::kSyncSteps < until) {
    EXPECT_EQ(training_.round().interval, (Interval{.mode = Mode::kSync, .reason = Reason::kPause}));
  }
  EXPECT_EQ(training_.round().interval.steps, 8) << "and on";
}

TEST_F(Drill, NormsAHundredTimesAsLargeOnAllRanks) {
  training_.edit = [](RoundStats& stats) {
    for (RankReport& report : stats.ranks) {
      report.norm2 *= 1e4;
    }
    stats.mean_norm2 *= 1e4;
  };
  EXPECT_EQ(training_.round().verdict.alarms[0], (Alarm{Guard::kNorm, Level::kRed, Action::kRollBack}));
  EXPECT_EQ(training_.current().mode, Mode::kSync);
}

TEST_F(Drill, TwoAnchorsOnFourRanks) {
  training_.edit = [](RoundStats& stats) { stats.digests = {1, 1, 2, 2}; };
  const Decision decision = training_.round();
  EXPECT_EQ(decision.interval, (Interval{.mode = Mode::kFailed, .reason = Reason::kGuardDigest}));
}

TEST(Alarms, AHalvedIntervalGrowsBackAfterCalmRounds) {
  Training training("qsr:warmup=0,base=16");
  training.rounds(30);
  ASSERT_EQ(training.current().steps, 16);
  int left = 1;
  training.edit = [&](RoundStats& stats) {
    if (left-- > 0) {
      stats.ranks.assign(4, RankReport{true, stats.ranks[0].norm2 * 3.5, 1});
      stats.mean_norm2 = 0;
    }
  };
  const Decision alarm = training.round();
  ASSERT_EQ(alarm.verdict.alarms.size(), 1U);
  EXPECT_EQ(alarm.verdict.alarms[0].action, Action::kPullBack);
  EXPECT_EQ(alarm.interval.steps, 8);
  EXPECT_EQ(alarm.interval.reason, Reason::kGuardVariance);
  EXPECT_EQ(training.rounds(9).interval.steps, 8);
  EXPECT_EQ(training.round().interval.steps, 16);
  EXPECT_EQ(training.current().reason, Reason::kStatistics);
}

TEST(Alarms, ARankThatIsLeftOutForGoodKeepsNobodyShort) {
  Training training("8:delay=1");
  training.rounds(40);
  bool once = true;
  training.edit = [&](RoundStats& stats) {
    stats.ranks[1].norm2 *= 1e4;
    stats.late_tags = std::exchange(once, false) ? 1 : 0;
  };
  EXPECT_EQ(training.round().interval.delay, 2);
  const Decision last = training.rounds(30);
  EXPECT_EQ(last.verdict.weights, (std::vector<std::int64_t>{1, 0, 1, 1}));
  EXPECT_EQ(last.interval.delay, 1);
  EXPECT_EQ(last.interval.steps, 8);
}

TEST(Alarms, APausedTrainingStartsAgainAtTheBase) {
  Training training("qsr:warmup=0");
  training.rounds(10);
  training.lr_pico /= 4;
  training.rounds(30);
  ASSERT_EQ(training.current().steps, 64);
  bool broken = true;
  training.edit = [&](RoundStats& stats) {
    stats.loss_finite = !broken;
    broken = false;
  };
  EXPECT_EQ(training.round().interval.reason, Reason::kGuardLoss);
  while (training.current().mode == Mode::kSync) {
    training.round();
  }
  std::vector<std::int64_t> steps = {training.current().steps};
  for (int i = 0; i < 60; ++i) {
    if (const std::int64_t next = training.round().interval.steps; next != steps.back()) {
      steps.push_back(next);
    }
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 4, 8, 16, 32, 64}));
}

TEST(Alarms, LateMergesCostAStepOfDelay) {
  Training training("8:delay=1");
  training.round();
  std::int64_t late = 1;
  training.edit = [&](RoundStats& stats) { stats.late_tags = std::exchange(late, 0); };
  EXPECT_EQ(training.round().interval.delay, 2);
  EXPECT_EQ(training.rounds(9).interval.delay, 2);
  EXPECT_EQ(training.round().interval.delay, 1);
  late = 3;
  EXPECT_EQ(training.round().interval.reason, Reason::kGuardLate);
  EXPECT_EQ(training.current().mode, Mode::kSync);
}

}  // namespace
}  // namespace sirtaki::scheduler::interval
