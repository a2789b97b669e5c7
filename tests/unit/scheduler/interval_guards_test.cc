#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "scheduler/interval/guards.h"

namespace sirtaki::scheduler::interval {
namespace {

using Alarms = std::vector<Alarm>;

constexpr std::int64_t kSteps = 8;

// Four ranks whose differences have the norms 1 and a variance of 1/2.
RoundStats usual(std::size_t ranks = 4) {
  RoundStats stats;
  stats.lr_pico = 100'000'000'000;
  stats.loss_known = true;
  stats.loss_before_e6 = stats.loss_after_e6 = 1'000'000;
  stats.ranks.assign(ranks, RankReport{true, 1, 1});
  stats.mean_norm2 = 0.5;
  return stats;
}

// After `rounds` usual ones, every other 2 % larger.
Guards settled(const GuardOptions& options = {}, std::size_t ranks = 4, int rounds = 30) {
  Guards guards(options, ranks);
  for (int i = 0; i < rounds; ++i) {
    RoundStats stats = usual(ranks);
    for (RankReport& report : stats.ranks) {
      report.norm2 = i % 2 == 0 ? 1 : 1.0404;
    }
    EXPECT_TRUE(guards.judge(stats, kSteps).alarms.empty());
  }
  return guards;
}

TEST(Guards, OneRankThatIsNotFiniteIsLeftOut) {
  Guards guards({}, 4);
  RoundStats stats = usual();
  stats.ranks[2].finite = false;
  const Verdict verdict = guards.judge(stats, kSteps);
  EXPECT_EQ(verdict.alarms, (Alarms{{Guard::kNonFinite, Level::kYellow, Action::kResetRank, 2}}));
  EXPECT_EQ(verdict.weights, (std::vector<std::int64_t>{1, 1, 0, 1}));
  EXPECT_TRUE(guards.judge(usual(), kSteps).alarms.empty()) << "it counts again";
}

TEST(Guards, NormsBeyondAllBoundsAreNotFinite) {
  Guards guards({}, 4);
  RoundStats stats = usual();
  stats.ranks[0].norm2 = std::numeric_limits<double>::max();
  EXPECT_EQ(guards.judge(stats, kSteps).weights, (std::vector<std::int64_t>{0, 1, 1, 1}));
}

TEST(Guards, MostRanksNotFiniteMeansBack) {
  for (const auto& [ranks, broken, red] : std::vector<std::tuple<std::size_t, std::size_t, bool>>{
           {4, 2, false}, {4, 3, true}, {4, 4, true}, {2, 1, false}, {2, 2, true}, {1, 1, true}, {3, 2, true}}) {
    SCOPED_TRACE(std::to_string(broken) + " of " + std::to_string(ranks));
    Guards guards({}, ranks);
    RoundStats stats = usual(ranks);
    for (std::size_t r = 0; r < broken; ++r) {
      stats.ranks[r].finite = false;
    }
    const Verdict verdict = guards.judge(stats, kSteps);
    ASSERT_FALSE(verdict.alarms.empty());
    EXPECT_EQ(verdict.alarms[0].level == Level::kRed, red);
    EXPECT_EQ(verdict.alarms[0].action, red ? Action::kRollBack : Action::kResetRank);
    EXPECT_EQ(std::ranges::count(verdict.weights, 0), static_cast<std::ptrdiff_t>(red ? ranks : broken));
  }
}

TEST(Guards, ANormFarAboveItsRanksPastIsLeftOut) {
  struct Case {
    double norm;
    bool far;
  };
  // Least deviation of half a binary digit, three of them: a factor of 2^1.5.
  for (const Case& c : {Case{2.7, false}, {2.95, true}, {100, true}, {0.01, false}, {1e-30, false}}) {
    Guards guards = settled();
    RoundStats stats = usual();
    stats.ranks[1].norm2 = c.norm * c.norm;
    EXPECT_EQ(guards.weight_of(1, stats.ranks[1], stats.lr_pico, kSteps), c.far ? 0 : 1) << "known before it is sent";
    const Verdict verdict = guards.judge(stats, kSteps);
    EXPECT_EQ(verdict.weights, (std::vector<std::int64_t>{1, c.far ? 0 : 1, 1, 1})) << c.norm;
    EXPECT_EQ(verdict.alarms.empty(), !c.far);
  }
}

TEST(Guards, ANoisyRankIsGivenMoreRoom) {
  Guards guards({}, 2);
  for (int i = 0; i < 200; ++i) {
    RoundStats stats = usual(2);
    stats.ranks[0].norm2 = i % 2 == 0 ? 1.0 / 16 : 16;  // two digits to either side
    guards.judge(stats, kSteps);
  }
  RoundStats stats = usual(2);
  stats.ranks[0].norm2 = stats.ranks[1].norm2 = 32 * 32;
  EXPECT_EQ(guards.weight_of(0, stats.ranks[0], stats.lr_pico, kSteps), 1) << "5 digits, deviation 2";
  EXPECT_EQ(guards.weight_of(1, stats.ranks[1], stats.lr_pico, kSteps), 0);
  stats.ranks[0].norm2 = 128.0 * 128;
  EXPECT_EQ(guards.weight_of(0, stats.ranks[0], stats.lr_pico, kSteps), 0) << "7 digits";
}

TEST(Guards, NobodyIsJudgedDuringTheWarmUp) {
  for (const int rounds : {19, 20}) {
    Guards guards = settled({}, 4, rounds);
    RoundStats stats = usual();
    stats.ranks[3].norm2 = 1e4;
    EXPECT_EQ(guards.judge(stats, kSteps).weights[3], rounds < 20 ? 1 : 0);
  }
}

TEST(Guards, LearningRatesAndIntervalsAreNoAnomaly) {
  Guards guards = settled();
  RoundStats stats = usual();
  stats.lr_pico *= 10;
  stats.ranks.assign(4, RankReport{true, 100, 1});
  stats.mean_norm2 = 50;
  EXPECT_TRUE(guards.judge(stats, kSteps).alarms.empty());
  for (const double power : {0.5, 1.0}) {
    RoundStats longer = usual();
    const double norm = std::pow(8, power);
    longer.ranks.assign(4, RankReport{true, norm * norm, 1});
    longer.mean_norm2 = norm * norm / 2;
    EXPECT_TRUE(guards.judge(longer, 8 * kSteps).alarms.empty()) << power;
  }
}

TEST(Guards, ThreeStrikesAreWhatTheOptionsSay) {
  for (const Action action : {Action::kResetRank, Action::kEvict, Action::kStop}) {
    GuardOptions options;
    options.norm_red = action;
    Guards guards = settled(options);
    RoundStats stats = usual();
    stats.ranks[0].norm2 = 1e4;
    const Alarm yellow{Guard::kNorm, Level::kYellow, Action::kExclude, 0};
    const Alarm red{Guard::kNorm, Level::kRed, action, 0};
    EXPECT_EQ(guards.judge(stats, kSteps).alarms, Alarms{yellow});
    EXPECT_EQ(guards.judge(stats, kSteps).alarms, Alarms{yellow});
    EXPECT_TRUE(guards.judge(usual(), kSteps).alarms.empty());
    EXPECT_EQ(guards.judge(stats, kSteps).alarms, Alarms{yellow}) << "not in a row";
    EXPECT_EQ(guards.judge(stats, kSteps).alarms, Alarms{yellow});
    const Verdict verdict = guards.judge(stats, kSteps);
    EXPECT_EQ(verdict.alarms, Alarms{red});
    EXPECT_EQ(verdict.weights[0], 0);
  }
}

TEST(Guards, MostNormsTooLargeMeansBack) {
  Guards guards = settled();
  RoundStats stats = usual();
  stats.ranks.assign(4, RankReport{true, 1e4, 1});
  EXPECT_EQ(guards.judge(stats, kSteps).alarms, (Alarms{{Guard::kNorm, Level::kRed, Action::kRollBack}}));
  guards.restart();
  EXPECT_TRUE(guards.judge(stats, kSteps).alarms.empty()) << "learnt anew";
}

TEST(Guards, SharesAreWeightsAndAJoinersIsNone) {
  Guards guards({}, 3);
  RoundStats stats = usual(3);
  stats.ranks[0].share = 640;
  stats.ranks[1].share = 0;
  stats.ranks[2].share = 320;
  EXPECT_EQ(guards.judge(stats, kSteps).weights, (std::vector<std::int64_t>{640, 0, 320}));
}

TEST(Guards, VarianceAboveFourMediansPullsBackThenPauses) {
  struct Case {
    double norm2;
    bool high;
  };
  for (const Case& c : {Case{2.45, false}, {2.6, true}}) {
    Guards guards({}, 4);
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(guards.judge(usual(), kSteps).alarms.empty());
    }
    RoundStats stats = usual();
    stats.ranks.assign(4, RankReport{true, c.norm2, 1});
    const Alarm yellow{Guard::kVariance, Level::kYellow, Action::kPullBack};
    const Alarm red{Guard::kVariance, Level::kRed, Action::kPause};
    for (const Alarm& alarm : {yellow, yellow, red}) {
      EXPECT_EQ(guards.judge(stats, kSteps).alarms, c.high ? Alarms{alarm} : Alarms{}) << c.norm2;
    }
  }
}

TEST(Guards, VarianceMayGrowWithTheIntervalAndTheLearningRate) {
  Guards guards({}, 4);
  for (int i = 0; i < 20; ++i) {
    guards.judge(usual(), kSteps);
  }
  RoundStats stats = usual();
  stats.lr_pico *= 3;
  stats.ranks.assign(4, RankReport{true, 9 * 11, 1});
  stats.mean_norm2 = 9 * 5;
  EXPECT_TRUE(guards.judge(stats, 4 * kSteps).alarms.empty()) << "12 times, of 8 that are due, of 32 allowed";
  stats.mean_norm2 = 0;
  stats.ranks.assign(4, RankReport{true, 9 * 17, 1});
  EXPECT_EQ(guards.judge(stats, 4 * kSteps).alarms.size(), 1U) << "34 times";
}

TEST(Guards, LossAfterARound) {
  struct Case {
    std::int64_t before;
    std::int64_t after;
    std::optional<Level> level;  // in the third round in a row
    std::int64_t first = 1'000'000;
  };
  for (const Case& c : {Case{1'000'000, 1'100'000, std::nullopt},
                        {1'000'000, 1'100'001, Level::kYellow},
                        {1'000'000, 1'500'000, Level::kYellow},
                        {1'000'000, 1'500'001, Level::kRed},
                        {1'000'000, 500'000, std::nullopt},
                        {1'000, 5'000, std::nullopt},
                        {1'000, 5'001, Level::kRed},
                        {1'000, 1'600, Level::kRed, 10'000},
                        {0, 20'000, Level::kRed},
                        {-2'000'000, -1'900'000, std::nullopt, 2'000'000},
                        {-2'000'000, -1'700'000, Level::kYellow, 2'000'000},
                        {-2'000'000, 0, Level::kRed, 2'000'000},
                        {-1'000'000, -9'000'000, std::nullopt},
                        {1'000'000, RoundStats::kMaxLoss, Level::kRed}}) {
    Guards guards({}, 4);
    RoundStats stats = usual();
    stats.loss_before_e6 = stats.loss_after_e6 = c.first;
    EXPECT_TRUE(guards.judge(stats, kSteps).alarms.empty());
    stats.loss_before_e6 = c.before;
    stats.loss_after_e6 = c.after;
    Alarms alarms;
    for (int round = 0; round < 3; ++round) {
      alarms = guards.judge(stats, kSteps).alarms;
      EXPECT_EQ(alarms.empty(), c.level != Level::kRed && (c.level != Level::kYellow || round < 2)) << c.after;
    }
    if (c.level) {
      EXPECT_EQ(alarms,
                (Alarms{{Guard::kLoss, *c.level, c.level == Level::kRed ? Action::kRollBack : Action::kHalve}}));
    }
    stats.loss_known = false;
    EXPECT_TRUE(guards.judge(stats, kSteps).alarms.empty());
  }
}

TEST(Guards, ALossThatIsNotFiniteMeansBack) {
  Guards guards({}, 4);
  RoundStats stats = usual();
  stats.loss_finite = false;
  EXPECT_EQ(guards.judge(stats, kSteps).alarms, (Alarms{{Guard::kLoss, Level::kRed, Action::kRollBack}}));
  stats.ranks.clear();
  EXPECT_TRUE(guards.judge(stats, 1).alarms.empty()) << "without merges there is no anchor to go back to";
}

TEST(Guards, TheMajorityOfDigestsIsRight) {
  struct Case {
    std::vector<std::uint64_t> digests;
    std::optional<std::vector<int>> minority;
  };
  using Ranks = std::vector<int>;
  for (const Case& c : std::vector<Case>{{{7, 7, 7, 7}, Ranks{}},
                                         {{7, 7, 9, 7}, Ranks{2}},
                                         {{9, 7, 7}, Ranks{0}},
                                         {{1, 7, 2, 7, 7}, Ranks{0, 2}},
                                         {{7, 7, 9, 9}, std::nullopt},
                                         {{7, 9}, std::nullopt},
                                         {{1, 2, 3, 7, 7}, std::nullopt},
                                         {{0}, Ranks{}}}) {
    EXPECT_EQ(outvoted(c.digests), c.minority);
    Guards guards({}, c.digests.size());
    RoundStats stats;
    stats.digests = c.digests;
    const Verdict verdict = guards.judge(stats, 1);
    if (!c.minority) {
      EXPECT_EQ(verdict.alarms, (Alarms{{Guard::kDigest, Level::kRed, Action::kStop}}));
      continue;
    }
    ASSERT_EQ(verdict.alarms.size(), c.minority->size());
    for (std::size_t i = 0; i < c.minority->size(); ++i) {
      EXPECT_EQ(verdict.alarms[i], (Alarm{Guard::kDigest, Level::kYellow, Action::kRepair, (*c.minority)[i]}));
    }
  }
}

TEST(Guards, LateMergesCountForTenMinutes) {
  constexpr std::int64_t kMinuteUs = 60'000'000;
  const Alarms yellow = {{Guard::kLate, Level::kYellow, Action::kRetry}};
  const Alarms red = {{Guard::kLate, Level::kRed, Action::kPause}};
  const auto at = [](Guards& guards, std::int64_t minute, std::int64_t late) {
    RoundStats stats = usual();
    stats.now_us = minute * kMinuteUs;
    stats.late_tags = late;
    return guards.judge(stats, kSteps).alarms;
  };
  Guards guards({}, 4);
  EXPECT_EQ(at(guards, 0, 1), yellow);
  EXPECT_EQ(at(guards, 4, 0), Alarms{});
  EXPECT_EQ(at(guards, 8, 1), yellow);
  EXPECT_EQ(at(guards, 11, 1), yellow) << "the first is forgotten";
  EXPECT_EQ(at(guards, 18, 1), red) << "minutes 8, 11 and 18";
  EXPECT_EQ(at(guards, 19, 1), yellow) << "counted anew";
  EXPECT_EQ(at(guards, 19, 9), red) << "several at once";
}

TEST(Guards, SwitchedOffTheyKeepWhatCannotBeAveraged) {
  GuardOptions options;
  options.on = false;
  Guards guards = settled(options);
  RoundStats stats = usual();
  stats.ranks[0].norm2 = 1e6;
  stats.ranks[1].finite = false;
  stats.loss_after_e6 = 9'000'000;
  stats.late_tags = 5;
  stats.digests = {1, 1, 1, 2};
  const Verdict verdict = guards.judge(stats, kSteps);
  EXPECT_EQ(verdict.alarms, (Alarms{{Guard::kNonFinite, Level::kYellow, Action::kResetRank, 1},
                                    {Guard::kDigest, Level::kYellow, Action::kRepair, 3}}));
  EXPECT_EQ(verdict.weights, (std::vector<std::int64_t>{1, 0, 1, 1}));
}

TEST(Guards, TheyFollowRanksIntoTheNextEpoch) {
  Guards guards = settled();
  guards.reform({-1, 3, 0});
  RoundStats stats = usual(3);
  stats.ranks.assign(3, RankReport{true, 1e4, 1});
  EXPECT_EQ(guards.weight_of(0, stats.ranks[0], stats.lr_pico, kSteps), 1) << "nothing is known of the joiner";
  EXPECT_EQ(guards.weight_of(1, stats.ranks[1], stats.lr_pico, kSteps), 0);
  EXPECT_EQ(guards.weight_of(2, stats.ranks[2], stats.lr_pico, kSteps), 0);
}

}  // namespace
}  // namespace sirtaki::scheduler::interval
