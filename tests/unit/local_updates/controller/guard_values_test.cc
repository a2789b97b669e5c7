#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/local_updates/controller/guards.h"
#include "tests/unit/local_updates/controller/numbers.h"

namespace sirtaki::local_updates {
namespace {

using Alarms = std::vector<Alarm>;

// A round in which the ranks' differences had these norms squared, half of it common to all of them.
RoundStats round_of(const Guards& guards, const std::vector<double>& norms2, std::int64_t steps = kSteps,
                    double rates = kRates) {
  std::vector<RankReport> ranks;
  for (const double norm2 : norms2) {
    ranks.push_back({norm2, rates, 1});
  }
  RoundStats stats;
  stats.loss_known = true;
  stats.loss_before_e6 = stats.loss_after_e6 = 1'000'000;
  stats.merges = {guards.norms(0).weigh(0, steps, ranks).value()};
  stats.merges[0].mean_norm2 = variance_of(stats.merges[0]) / 2;
  return stats;
}

RoundStats usual(const Guards& guards, std::size_t ranks = 4) {
  return round_of(guards, std::vector<double>(ranks, 1.0));
}

Guards trained(const GuardOptions& options = {}, std::size_t ranks = 4, int rounds = 30) {
  Guards guards(options, ranks, 1);
  for (int i = 0; i < rounds; ++i) {
    EXPECT_TRUE(guards.judge(usual(guards, ranks)).empty());
  }
  return guards;
}

TEST(Guards, OneRankThatIsNotFiniteIsReset) {
  Guards guards({}, 4, 1);
  EXPECT_EQ(guards.judge(round_of(guards, {1, 1, kInfinity, 1})),
            (Alarms{{Guard::kNonFinite, Level::kYellow, Action::kResetRank, 2}}));
  EXPECT_TRUE(guards.judge(usual(guards)).empty()) << "it counts again";
}

TEST(Guards, WhereNobodyIsLeftAllGoBack) {
  const Alarms back = {{Guard::kNonFinite, Level::kRed, Action::kRollBack}};
  Guards four({}, 4, 1);
  EXPECT_EQ(four.judge(round_of(four, {kInfinity, kInfinity, kInfinity, 1})), back);
  Guards two({}, 2, 1);
  RoundStats stats = usual(two, 2);
  std::vector<RankReport> ranks(2, RankReport{1, kRates, 1});
  ranks[0].share = 0;
  ranks[1].norm2 = kInfinity;
  stats.merges = {two.norms(0).weigh(0, kSteps, ranks).value()};
  EXPECT_EQ(total_weight(stats.merges[0]), 0);
  EXPECT_EQ(two.judge(stats), back) << "a joiner and one that is not finite";
  ranks[1] = {0, kRates, 0};
  stats.merges = {two.norms(0).weigh(0, kSteps, ranks).value()};
  EXPECT_TRUE(two.judge(stats).empty()) << "no rank had a difference";
}

TEST(Guards, ThreeStrikesResetARankTwice) {
  for (const Action last : {Action::kExclude, Action::kEvict, Action::kStop}) {
    GuardOptions options;
    options.norm_last = last;
    Guards guards = trained(options);
    const auto far = [&] { return guards.judge(round_of(guards, {1e4, 1, 1, 1})); };
    const Alarms yellow = {{Guard::kNorm, Level::kYellow, Action::kExclude, 0}};
    EXPECT_EQ(far(), yellow);
    EXPECT_EQ(far(), yellow);
    EXPECT_TRUE(guards.judge(usual(guards)).empty());
    for (const Action action : {Action::kResetRank, Action::kResetRank, last, last}) {
      EXPECT_EQ(far(), yellow) << "not in a row";
      EXPECT_EQ(far(), yellow);
      EXPECT_EQ(far(), (Alarms{{Guard::kNorm, Level::kRed, action, 0}}));
    }
  }
}

TEST(Guards, ARankIsResetOnlyForMostOfItsFragments) {
  for (const int far : {1, 2}) {
    Guards guards({}, 4, 3);
    for (int round = 0; round < 30; ++round) {
      RoundStats stats;
      for (int p = 0; p < 3; ++p) {
        std::vector<RankReport> ranks(4, RankReport{1, kRates, 1});
        ranks[1].norm2 = round >= 20 && p < far ? 1e4 : 1;
        stats.merges.push_back(guards.norms(p).weigh(p, kSteps, ranks).value());
        EXPECT_EQ(stats.merges.back().weights[1], round >= 20 && p < far ? 0 : 1);
      }
      const Alarms alarms = guards.judge(stats);
      EXPECT_EQ(std::ranges::count(alarms, Guard::kNorm, &Alarm::guard), round >= 20 ? 1 : 0);
      EXPECT_EQ(std::ranges::count(alarms, Level::kRed, &Alarm::level),
                far > 1 && round >= 20 && (round - 19) % 3 == 0 ? 1 : 0)
          << round;
    }
  }
}

TEST(Guards, VarianceAboveFourMediansPullsBackThenPauses) {
  struct Case {
    double norm2;
    bool high;
  };
  for (const Case& c : {Case{3.95, false}, {4.05, true}}) {
    Guards guards = trained({}, 4, 5);
    const Alarm yellow{Guard::kVariance, Level::kYellow, Action::kPullBack};
    const Alarm red{Guard::kVariance, Level::kRed, Action::kPause};
    for (const Alarm& alarm : {yellow, yellow, red}) {
      const RoundStats stats = round_of(guards, std::vector<double>(4, c.norm2));
      EXPECT_EQ(guards.judge(stats), c.high ? Alarms{alarm} : Alarms{}) << c.norm2;
    }
  }
}

// A residual of which nothing arrives: its norm grows with the rounds.
TEST(Guards, ResidualsMayAddUp) {
  const auto alarms_of = [](bool residuals, double growth) {
    GuardOptions options;
    options.residuals = residuals;
    Guards guards(options, 4, 1);
    std::size_t alarms = 0;
    double more = 1;
    for (int round = 1; round <= 100; ++round, more *= growth) {
      alarms += guards.judge(round_of(guards, std::vector<double>(4, round * round * more))).size();
    }
    return alarms;
  };
  EXPECT_EQ(alarms_of(true, 1.0), 0U);
  EXPECT_GT(alarms_of(false, 1.0), 0U);
  EXPECT_GT(alarms_of(true, 1.4), 50U) << "models that move apart";
}

TEST(Guards, ResidualsAddUpAgainAfterADrain) {
  GuardOptions options;
  options.residuals = true;
  Guards guards(options, 4, 1);
  for (int round = 1; round <= 300; ++round) {
    EXPECT_TRUE(
        guards.judge(round_of(guards, std::vector<double>(4, std::min(round, 40) * std::min(round, 40)))).empty());
  }
  guards.drained();
  for (int round = 3; round <= 43; ++round) {
    EXPECT_TRUE(guards.judge(round_of(guards, std::vector<double>(4, round * round))).empty()) << round;
  }
}

TEST(Guards, VarianceIsThatOfAllFragments) {
  Guards guards({}, 2, 2);
  const auto judge = [&](double first, double second) {
    RoundStats stats;
    for (const auto& [p, norm2] : {std::pair(0, first), std::pair(1, second)}) {
      stats.merges.push_back(guards.norms(p).weigh(p, kSteps, std::vector(2, RankReport{norm2, kRates, 1})).value());
    }
    return guards.judge(stats);
  };
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(judge(1, 9).empty());
  }
  EXPECT_TRUE(judge(25, 9).empty()) << "of a small one";
  EXPECT_EQ(judge(1, 45).size(), 1U);
}

TEST(Guards, VarianceMayGrowWithTheRateAndTheSteps) {
  for (const double power : {1.0, 1.5, 2.0}) {
    for (const std::int64_t steps : {std::int64_t{1}, 4 * kSteps, 100 * kSteps}) {
      Guards guards = trained({}, 4, 20);
      const double longer = static_cast<double>(steps) / kSteps;
      const double rates = 3 * kRates * longer;
      const double due = 9 * std::pow(longer, power);
      const double room = 4 * std::exp2(0.5 * std::abs(std::log2(longer))) * std::pow(longer, 1.5 - power);
      for (const double part : {0.95, 1.05}) {
        Guards copy = guards;
        const RoundStats stats = round_of(copy, std::vector<double>(4, due * room * part), steps, rates);
        EXPECT_EQ(copy.judge(stats).size(), part < 1 ? 0U : 1U) << power << ", " << steps << " steps, " << part;
      }
      EXPECT_GE(room, 3.9) << "what is usual passes";
    }
  }
}

TEST(Guards, VarianceIsLearntAnewWhereRatesAreNoLongerKnown) {
  Guards guards = trained();
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(guards.judge(round_of(guards, std::vector<double>(4, 1.0), kSteps, -1)).empty());
  }
  EXPECT_TRUE(guards.judge(usual(guards)).empty());
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
    Guards guards({}, 4, 1);
    RoundStats stats = usual(guards);
    stats.loss_before_e6 = stats.loss_after_e6 = c.first;
    EXPECT_TRUE(guards.judge(stats).empty());
    stats.loss_before_e6 = c.before;
    stats.loss_after_e6 = c.after;
    Alarms alarms;
    for (int round = 0; round < 3; ++round) {
      alarms = guards.judge(stats);
      EXPECT_EQ(alarms.empty(), c.level != Level::kRed && (c.level != Level::kYellow || round < 2)) << c.after;
    }
    if (c.level) {
      EXPECT_EQ(alarms,
                (Alarms{{Guard::kLoss, *c.level, c.level == Level::kRed ? Action::kRollBack : Action::kHalve}}));
    }
    stats.loss_known = false;
    EXPECT_TRUE(guards.judge(stats).empty());
  }
}

TEST(Guards, ALossThatIsNotFiniteMeansBack) {
  Guards guards({}, 4, 1);
  RoundStats stats = usual(guards);
  stats.loss_finite = false;
  EXPECT_EQ(guards.judge(stats), (Alarms{{Guard::kLoss, Level::kRed, Action::kRollBack}}));
  stats.merges.clear();
  EXPECT_TRUE(guards.judge(stats).empty()) << "without merges there is no anchor to go back to";
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
    Guards guards({}, c.digests.size(), 1);
    RoundStats stats;
    stats.digests = c.digests;
    const Alarms alarms = guards.judge(stats);
    if (!c.minority) {
      EXPECT_EQ(alarms, (Alarms{{Guard::kDigest, Level::kRed, Action::kStop}}));
      continue;
    }
    ASSERT_EQ(alarms.size(), c.minority->size());
    for (std::size_t i = 0; i < c.minority->size(); ++i) {
      EXPECT_EQ(alarms[i], (Alarm{Guard::kDigest, Level::kYellow, Action::kRepair, (*c.minority)[i]}));
    }
  }
}

TEST(Guards, LateMergesCountForTenMinutes) {
  constexpr std::int64_t kMinuteUs = 60'000'000;
  const Alarms yellow = {{Guard::kLate, Level::kYellow, Action::kRetry}};
  const Alarms red = {{Guard::kLate, Level::kRed, Action::kPause}};
  Guards guards({}, 4, 1);
  const auto at = [&](std::int64_t minute, std::int64_t late) {
    RoundStats stats;
    stats.now_us = minute * kMinuteUs;
    stats.late_tags = late;
    return guards.judge(stats);
  };
  EXPECT_EQ(at(0, 1), yellow);
  EXPECT_EQ(at(4, 0), Alarms{});
  EXPECT_EQ(at(8, 1), yellow);
  EXPECT_EQ(at(11, 1), yellow) << "the first is forgotten";
  EXPECT_EQ(at(18, 1), red) << "minutes 8, 11 and 18";
  EXPECT_EQ(at(19, 1), yellow) << "counted anew";
  EXPECT_EQ(at(19, 9), red) << "several at once";
  EXPECT_EQ(at(20, 2), yellow);
  EXPECT_EQ(at(1, 1), yellow) << "a run that goes on after a checkpoint has a clock of its own";
}

TEST(Guards, SwitchedOffTheyKeepWhatCannotBeAveraged) {
  GuardOptions options;
  options.on = false;
  Guards guards = trained(options);
  RoundStats stats = round_of(guards, {1e6, kInfinity, 1, 1});
  stats.loss_after_e6 = 9'000'000;
  stats.late_tags = 5;
  stats.digests = {1, 1, 1, 2};
  EXPECT_EQ(stats.merges[0].weights, (std::vector<std::int64_t>{1, 0, 1, 1}));
  EXPECT_EQ(guards.judge(stats), (Alarms{{Guard::kNonFinite, Level::kYellow, Action::kResetRank, 1},
                                         {Guard::kDigest, Level::kYellow, Action::kRepair, 3}}));
}

}  // namespace
}  // namespace sirtaki::local_updates
