// Effects of alarms on the interval controller, and drills in which one rank or all fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tests/unit/local_updates/controller/numbers.h"
#include "tests/unit/local_updates/controller/training.h"

namespace sirtaki::local_updates {
namespace {

using Reports = std::vector<RankReport>;

constexpr int kDrillRounds = 3;

bool counts(const Training& training, std::size_t rank) {
  return std::ranges::any_of(training.merges(), [rank](const Merge& merge) { return merge.weights[rank] > 0; });
}

// After a warm-up of the guards.
class Drill : public testing::Test {
 protected:
  Drill() { training_.rounds(60); }

  // From the first difference that is not like the others'.
  void expect_left_out(std::size_t rank) {
    for (int round = 0; round < kDrillRounds; ++round) {
      training_.round();
      for (const Merge& merge : training_.merges()) {
        EXPECT_EQ(merge.weights[rank] > 0, merge.ranks[rank].norm2 == merge.ranks[0].norm2) << round;
      }
    }
    EXPECT_FALSE(counts(training_, rank));
  }

  Training training_{"8:delay=2"};
};

TEST_F(Drill, NotANumberOnOneRank) {
  training_.report = [](Reports& ranks) { ranks[2].norm2 = kInfinity; };
  expect_left_out(2);
  EXPECT_EQ(training_.current().mode, Mode::kLocal);
  training_.report = [](Reports&) {};
  training_.rounds(2);
  EXPECT_TRUE(counts(training_, 2));
}

TEST_F(Drill, ALearningRateAHundredTimesAsLargeOnOneRank) {
  training_.report = [](Reports& ranks) {
    ranks[1].norm2 *= 1e4;
    ranks[1].lr_sum *= 100;
  };
  training_.measure = [](std::vector<RankRound>& ranks) { ranks[1].lr *= 100; };
  expect_left_out(1);
  const Decision last = training_.rounds(10);
  EXPECT_EQ(last.interval.mode, Mode::kLocal);
  EXPECT_EQ(last.interval.steps, 8) << "the others go on";
  EXPECT_FALSE(counts(training_, 1));
  EXPECT_TRUE(counts(training_, 0));
}

TEST_F(Drill, ALearningRateThatJumpsOnAllRanksIsNone) {
  training_.set_rate(10);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(training_.round().alarms.empty());
    EXPECT_TRUE(counts(training_, 1));
  }
}

TEST_F(Drill, NotANumberOnAllRanks) {
  training_.report = [](Reports& ranks) {
    for (RankReport& rank : ranks) {
      rank.norm2 = kInfinity;
    }
  };
  const Decision decision = training_.round();
  ASSERT_EQ(decision.alarms.size(), 1U);
  EXPECT_EQ(decision.alarms[0], (Alarm{Guard::kNonFinite, Level::kRed, Action::kRollBack}));
  EXPECT_EQ(decision.interval.mode, Mode::kDrain);
  EXPECT_EQ(decision.interval.reason, Reason::kGuardNonFinite);
  EXPECT_EQ(training_.current().mode, Mode::kSync);
  training_.report = [](Reports&) {};
  const std::int64_t until = training_.step() + 100;
  while (training_.step() + Training::kSyncSteps < until) {
    EXPECT_EQ(training_.round().interval, (Interval{.mode = Mode::kSync, .reason = Reason::kPause}));
  }
  EXPECT_EQ(training_.round().interval.steps, 8) << "and on";
}

TEST_F(Drill, ATrainingThatDiverges) {
  training_.measure = [](std::vector<RankRound>& ranks) {
    for (RankRound& rank : ranks) {
      rank.loss_after = 1e30;
    }
  };
  const Decision decision = training_.round();
  ASSERT_EQ(decision.alarms.size(), 1U);
  EXPECT_EQ(decision.alarms[0], (Alarm{Guard::kLoss, Level::kRed, Action::kRollBack}));
  EXPECT_EQ(training_.current().mode, Mode::kSync);
}

TEST_F(Drill, TwoAnchorsOnFourRanks) {
  training_.edit = [](RoundStats& stats) { stats.digests = {1, 1, 2, 2}; };
  const Decision decision = training_.round();
  EXPECT_EQ(decision.interval, (Interval{.mode = Mode::kFailed, .reason = Reason::kGuardDigest}));
}

// ---- drains ----

class DrainDrill : public Drill {
 protected:
  // The program asks for a drain, in which something goes wrong.
  Decision drain() {
    EXPECT_TRUE(training_.controller().happened(Event::kWantDrain));
    return training_.decide(training_.drain());
  }
};

TEST_F(DrainDrill, WithoutAlarmsItLeadsBack) {
  const Decision decision = drain();
  EXPECT_TRUE(decision.alarms.empty());
  EXPECT_FALSE(training_.merges().empty());
  EXPECT_EQ(decision.interval.reason, Reason::kResumed);
  EXPECT_EQ(decision.interval.steps, 8);
}

TEST_F(DrainDrill, OneRankIsLeftOut) {
  training_.next();
  training_.report = [](Reports& ranks) { ranks[2].norm2 = kInfinity; };
  const Decision decision = drain();
  ASSERT_EQ(decision.alarms.size(), 1U);
  EXPECT_EQ(decision.alarms[0], (Alarm{Guard::kNonFinite, Level::kYellow, Action::kResetRank, 2}));
  EXPECT_EQ(decision.interval.mode, Mode::kLocal);
}

TEST_F(DrainDrill, AllRanksGoBack) {
  training_.next();
  training_.report = [](Reports& ranks) {
    for (RankReport& rank : ranks) {
      rank.norm2 = kInfinity;
    }
  };
  const Decision decision = drain();
  EXPECT_EQ(decision.interval, (Interval{.mode = Mode::kSync, .reason = Reason::kGuardNonFinite}));
  EXPECT_EQ(training_.round().interval.reason, Reason::kPause);
}

TEST_F(DrainDrill, ParametersAreCompared) {
  training_.edit = [](RoundStats& stats) { stats.digests = {1, 1, 2, 1}; };
  EXPECT_EQ(drain().alarms.at(0), (Alarm{Guard::kDigest, Level::kYellow, Action::kRepair, 2}));
  training_.edit = [](RoundStats& stats) { stats.digests = {1, 1, 2, 2}; };
  EXPECT_EQ(drain().interval, (Interval{.mode = Mode::kFailed, .reason = Reason::kGuardDigest}));
}

// ---- after alarms ----

TEST(Alarms, AHalvedIntervalGrowsBackAfterCalmRounds) {
  Training training("qsr:warmup=0,base=16");
  training.rounds(30);
  ASSERT_EQ(training.current().steps, 16);
  training.report = [](Reports& ranks) {
    for (RankReport& rank : ranks) {
      rank.norm2 *= 5;
    }
  };
  const Decision alarm = training.round();
  training.report = [](Reports&) {};
  ASSERT_EQ(alarm.alarms.size(), 1U);
  EXPECT_EQ(alarm.alarms[0].action, Action::kPullBack);
  EXPECT_EQ(alarm.interval.steps, 8);
  EXPECT_EQ(alarm.interval.reason, Reason::kGuardVariance);
  EXPECT_EQ(training.rounds(9).interval.steps, 8);
  EXPECT_EQ(training.round().interval.steps, 16);
  EXPECT_EQ(training.current().reason, Reason::kStatistics);
}

TEST(Alarms, ARankThatIsLeftOutForGoodKeepsNobodyShort) {
  Training training("8:delay=1");
  training.rounds(40);
  training.report = [](Reports& ranks) { ranks[1].norm2 *= 1e4; };
  bool once = true;
  training.edit = [&](RoundStats& stats) { stats.late_tags = std::exchange(once, false) ? 1 : 0; };
  EXPECT_EQ(training.round().interval.delay, 2);
  const Decision last = training.rounds(30);
  EXPECT_FALSE(counts(training, 1));
  EXPECT_EQ(last.interval.delay, 1);
  EXPECT_EQ(last.interval.steps, 8);
}

TEST(Alarms, ARankThatWasQuietAndIsLikeTheOthersNowCounts) {
  Training training("8:delay=2");
  training.report = [](Reports& ranks) { ranks[3].norm2 /= 25; };
  training.rounds(60);
  training.report = [](Reports&) {};
  EXPECT_TRUE(training.round().alarms.empty()) << "five times its past";
  EXPECT_TRUE(counts(training, 3));
}

TEST(Alarms, APauseForALateLinkForgetsNoNorms) {
  Training training("8:delay=1");
  training.rounds(40);
  bool once = true;
  training.edit = [&](RoundStats& stats) { stats.late_tags = std::exchange(once, false) ? 3 : 0; };
  EXPECT_EQ(training.round().interval.reason, Reason::kGuardLate);
  while (training.current().mode == Mode::kSync) {
    training.round();
  }
  training.report = [](Reports& ranks) { ranks[1].norm2 *= 1e4; };
  training.round();
  EXPECT_FALSE(counts(training, 1));
}

// A pause of a hundred steps takes the time of a hundred steps without waits, but has a fifth of them.
TEST(Alarms, APauseOnASlowLinkIsShorter) {
  for (const auto& [dense_us, steps] : {std::pair<std::int64_t, std::int64_t>{0, 112}, {33'000, 80}, {3'000'000, 32}}) {
    Training training("8:delay=1");
    training.dense_us = dense_us;
    training.rounds(40);
    bool once = true;
    training.edit = [&](RoundStats& stats) { stats.loss_finite = !std::exchange(once, false); };
    EXPECT_EQ(training.round().interval.reason, Reason::kGuardLoss);
    const std::int64_t begin = training.step();
    while (training.current().mode == Mode::kSync) {
      training.round();
    }
    EXPECT_EQ(training.step() - begin, steps) << dense_us;
  }
}

TEST(Alarms, APausedTrainingStartsAgainAtTheBase) {
  Training training("qsr:warmup=0");
  training.rounds(10);
  training.set_rate(0.025);
  training.rounds(30);
  ASSERT_EQ(training.current().steps, 64);
  bool broken = true;
  training.edit = [&](RoundStats& stats) { stats.loss_finite = !std::exchange(broken, false); };
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

// Residuals of differences outlast the learning rates with which they came about.
TEST(Alarms, DifferencesThatFallMoreSlowlyThanTheRateAreNone) {
  Training training("4:delay=1");
  double rate = 0.1;
  double norm2 = 1.0;
  training.report = [&](Reports& ranks) {
    for (RankReport& rank : ranks) {
      rank.norm2 = norm2;
    }
  };
  training.rounds(30);
  for (int i = 0; i < 40; ++i) {
    training.set_rate(rate *= 0.85);
    norm2 *= 0.9;
    EXPECT_TRUE(training.round().alarms.empty()) << i;
  }
  // Models that move apart are an anomaly with a falling rate, too.
  bool alarmed = false;
  for (int i = 0; i < 20; ++i) {
    norm2 *= 1.5;
    const auto alarms = training.round().alarms;
    alarmed = alarmed || std::ranges::any_of(alarms, [](const Alarm& a) { return a.guard == Guard::kVariance; });
  }
  EXPECT_TRUE(alarmed);
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
}  // namespace sirtaki::local_updates
