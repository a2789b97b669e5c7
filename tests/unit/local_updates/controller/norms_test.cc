#include "runtime/local_updates/controller/norms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/unit/local_updates/controller/numbers.h"

namespace sirtaki::local_updates {
namespace {

using Weights = std::vector<std::int64_t>;

std::vector<RankReport> reports(std::size_t ranks, double norm, double rates = kRates) {
  return std::vector<RankReport>(ranks, RankReport{norm * norm, rates, 1});
}

Weights weights_of(const FragmentNorms& norms, const std::vector<RankReport>& ranks, std::int64_t steps = kSteps) {
  return norms.weigh(0, steps, ranks).value().weights;
}

// After norms of 1, every other 2 % larger.
FragmentNorms settled_norms(const NormOptions& options = {}, std::size_t ranks = 4, int rounds = 30) {
  FragmentNorms norms(options, ranks);
  for (int i = 0; i < rounds; ++i) {
    norms.learn(norms.weigh(0, kSteps, reports(ranks, i % 2 == 0 ? 1 : 1.02)).value());
  }
  return norms;
}

TEST(IntervalNorms, OneFarAboveItsPastAndTheOthersIsLeftOut) {
  struct Case {
    double norm;
    bool far;
  };
  // Least deviation of half a binary digit, three of them: a factor of 2^1.5.
  for (const Case& c : {Case{2.7, false}, {2.95, true}, {100, true}, {0.01, false}, {1e-30, false}}) {
    const FragmentNorms norms = settled_norms();
    std::vector<RankReport> ranks = reports(4, 1);
    ranks[1].norm2 = c.norm * c.norm;
    EXPECT_EQ(weights_of(norms, ranks), (Weights{1, c.far ? 0 : 1, 1, 1})) << c.norm;
  }
}

TEST(IntervalNorms, ARankThatIsLikeTheOthersCountsWhateverItsPast) {
  FragmentNorms norms({}, 4);
  for (int i = 0; i < 30; ++i) {
    std::vector<RankReport> ranks = reports(4, 1);
    ranks[2].norm2 = 1.0 / 16;
    norms.learn(norms.weigh(0, kSteps, ranks).value());
  }
  EXPECT_EQ(weights_of(norms, reports(4, 1)), (Weights{1, 1, 1, 1})) << "four times its past";
  std::vector<RankReport> far = reports(4, 1);
  far[2].norm2 = 9;
  EXPECT_EQ(weights_of(norms, far), (Weights{1, 1, 0, 1})) << "three times the others'";
}

TEST(IntervalNorms, ARankThatWasAlwaysFarCounts) {
  FragmentNorms norms({}, 4);
  std::vector<RankReport> ranks = reports(4, 1);
  ranks[0].norm2 = 25;
  for (int i = 0; i < 30; ++i) {
    norms.learn(norms.weigh(0, kSteps, ranks).value());
  }
  EXPECT_EQ(weights_of(norms, ranks), (Weights{1, 1, 1, 1}));
}

TEST(IntervalNorms, WhatBefallsAllRanksIsNoAnomaly) {
  const FragmentNorms norms = settled_norms();
  EXPECT_EQ(weights_of(norms, reports(4, 100)), (Weights{1, 1, 1, 1}));
  EXPECT_EQ(weights_of(norms, reports(4, 1), 100 * kSteps), (Weights{1, 1, 1, 1}));
}

TEST(IntervalNorms, OneRanksLearningRateChangesNoJudgement) {
  for (const std::size_t ranks : {std::size_t{2}, std::size_t{3}, std::size_t{4}}) {
    for (std::size_t sick = 0; sick < ranks; ++sick) {
      const FragmentNorms norms = settled_norms({}, ranks);
      std::vector<RankReport> received = reports(ranks, 1);
      received[sick] = {1e4, 100 * kRates, 1};
      Weights expected(ranks, 1);
      expected[sick] = 0;
      EXPECT_EQ(weights_of(norms, received), expected) << sick << " of " << ranks;
    }
  }
}

TEST(IntervalNorms, ALearningRateOfAllIsJudgedByItself) {
  for (const double factor : {0.1, 1.0, 10.0}) {
    const FragmentNorms norms = settled_norms();
    std::vector<RankReport> received = reports(4, factor, factor * kRates);
    EXPECT_EQ(weights_of(norms, received), (Weights{1, 1, 1, 1})) << factor;
    received[3].norm2 *= 3 * 3;
    EXPECT_EQ(weights_of(norms, received), (Weights{1, 1, 1, 0})) << factor;
  }
}

TEST(IntervalNorms, RatesThatAreNoLongerKnownAreLearntAnew) {
  FragmentNorms norms = settled_norms();
  std::vector<RankReport> received = reports(4, 1, -1);
  received[1].norm2 = 1e4;
  EXPECT_EQ(weights_of(norms, received), (Weights{1, 1, 1, 1})) << "nothing to compare with";
  for (int i = 0; i < 20; ++i) {
    norms.learn(norms.weigh(0, kSteps, reports(4, 1, -1)).value());
  }
  EXPECT_EQ(weights_of(norms, received), (Weights{1, 0, 1, 1}));
}

TEST(IntervalNorms, NothingIsLearntAtARateOfZero) {
  FragmentNorms norms = settled_norms();
  for (int i = 0; i < 100; ++i) {
    norms.learn(norms.weigh(0, kSteps, reports(4, 1e-3, 0)).value());
  }
  std::vector<RankReport> ranks = reports(4, 1);
  ranks[1].norm2 = 9;
  EXPECT_EQ(weights_of(norms, ranks), (Weights{1, 0, 1, 1})) << "what was learnt before still holds";
}

TEST(IntervalNorms, ANoisyRankIsGivenMoreRoom) {
  FragmentNorms norms({}, 3);
  for (int i = 0; i < 200; ++i) {
    std::vector<RankReport> ranks = reports(3, 1);
    ranks[0].norm2 = i % 2 == 0 ? 1.0 / 16 : 16;  // two digits to either side
    norms.learn(norms.weigh(0, kSteps, ranks).value());
  }
  std::vector<RankReport> ranks = reports(3, 1);
  ranks[0].norm2 = 32 * 32;
  EXPECT_EQ(weights_of(norms, ranks), (Weights{1, 1, 1})) << "5 digits, deviation 2";
  ranks[0].norm2 = 128.0 * 128;
  EXPECT_EQ(weights_of(norms, ranks), (Weights{0, 1, 1})) << "7 digits";
  ranks = reports(3, 1);
  ranks[1].norm2 = 32 * 32;
  EXPECT_EQ(weights_of(norms, ranks), (Weights{1, 0, 1})) << "of a quiet one";
}

TEST(IntervalNorms, NobodyIsJudgedDuringTheWarmUp) {
  for (const int rounds : {19, 20}) {
    std::vector<RankReport> ranks = reports(4, 1);
    ranks[3].norm2 = 1e4;
    EXPECT_EQ(weights_of(settled_norms({}, 4, rounds), ranks)[3], rounds < 20 ? 1 : 0);
  }
}

TEST(IntervalNorms, OneRankAloneIsNeverFar) {
  EXPECT_EQ(weights_of(settled_norms({}, 1), reports(1, 1e4)), Weights{1});
}

TEST(IntervalNorms, WhatIsNotFiniteDoesNotCount) {
  const double not_a_number = std::nan("");
  for (const double norm2 : {kInfinity, not_a_number, 1e250, std::numeric_limits<double>::max()}) {
    const FragmentNorms norms({}, 4);
    std::vector<RankReport> ranks = reports(4, 1);
    ranks[0].norm2 = norm2;
    EXPECT_EQ(weights_of(norms, ranks), (Weights{0, 1, 1, 1})) << norm2;
  }
}

TEST(IntervalNorms, WhereMostAreNotFiniteNobodyCounts) {
  struct Case {
    std::size_t ranks;
    std::size_t broken;
    bool all;
  };
  for (const Case& c : {Case{4, 2, false}, {4, 3, true}, {4, 4, true}, {2, 1, false}, {2, 2, true}, {1, 1, true}}) {
    std::vector<RankReport> ranks = reports(c.ranks, 1);
    for (std::size_t r = 0; r < c.broken; ++r) {
      ranks[r].norm2 = kInfinity;
    }
    Weights expected(c.ranks, c.all ? 0 : 1);
    std::fill_n(expected.begin(), c.broken, 0);
    EXPECT_EQ(weights_of(FragmentNorms({}, c.ranks), ranks), expected) << c.broken << " of " << c.ranks;
  }
}

// The limit is twice the median of those that count, the lower of two, whatever the past.
TEST(IntervalNorms, LongDifferencesAreScaledDown) {
  const auto limit_of = [](std::vector<double> lengths, const NormOptions& options = {}) {
    const FragmentNorms norms(options, lengths.size());
    std::vector<RankReport> ranks;
    for (const double length : lengths) {
      ranks.push_back({length * length, kRates, 1});
    }
    return norms.weigh(0, kSteps, ranks).value();
  };
  const Merge merge = limit_of({1, 1, 1.5, 8});
  EXPECT_EQ(merge.most_norm2, 4);
  EXPECT_EQ(clip_of(merge, 2), 1);
  EXPECT_EQ(clip_of(merge, 3), 0.25);
  EXPECT_EQ(variance_of(merge), (1 + 1 + 2.25 + 4) / 4);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(limit_of({1, 8}).most_norm2, infinity) << "two ranks have no median";
  EXPECT_EQ(limit_of({1, 8, infinity}).most_norm2, infinity) << "two that count";
  EXPECT_EQ(limit_of({0, 0, 8}).most_norm2, infinity);
  NormOptions options;
  options.clip_permille = 3000;
  EXPECT_EQ(limit_of({1, 1, 8}, options).most_norm2, 9);
  options.clip_permille = 0;
  EXPECT_EQ(limit_of({1, 1, 8}, options).most_norm2, infinity);
  options = {};
  options.on = false;
  EXPECT_EQ(limit_of({1, 1, 8}, options).most_norm2, infinity);
}

TEST(IntervalNorms, SharesAreWeightsAndAJoinersIsNone) {
  std::vector<RankReport> ranks = reports(3, 1);
  ranks[0].share = 640;
  ranks[1].share = 0;
  ranks[2].share = 320;
  EXPECT_EQ(weights_of(FragmentNorms({}, 3), ranks), (Weights{640, 0, 320}));
}

TEST(IntervalNorms, SwitchedOffTheyLeaveOutOnlyWhatIsNotFinite) {
  NormOptions options;
  options.on = false;
  std::vector<RankReport> ranks = reports(4, 1);
  ranks[0].norm2 = 1e12;
  ranks[1].norm2 = kInfinity;
  EXPECT_EQ(weights_of(settled_norms(options), ranks), (Weights{1, 0, 1, 1}));
}

TEST(IntervalNorms, TheyFollowRanksIntoTheNextEpoch) {
  FragmentNorms norms = settled_norms();
  norms.reform({-1, 3, 0, 2, 1});
  std::vector<RankReport> ranks = reports(5, 1);
  ranks[0].norm2 = ranks[1].norm2 = 1e4;
  EXPECT_EQ(weights_of(norms, ranks), (Weights{1, 0, 1, 1, 1})) << "nothing is known of the joiner";
}

TEST(IntervalNorms, ReportsThatCannotBeAreRefused) {
  const FragmentNorms norms({}, 4);
  std::vector<RankReport> ranks = reports(4, 1);
  ranks[2].norm2 = -1;
  EXPECT_EQ(norms.weigh(0, kSteps, ranks).status().blame().rank, 2);
  ranks = reports(4, 1);
  ranks[1].share = -1;
  EXPECT_EQ(norms.weigh(0, kSteps, ranks).status().code(), Code::kCorrupt);
  EXPECT_EQ(norms.weigh(0, kSteps, reports(3, 1)).status().code(), Code::kCorrupt);
  EXPECT_EQ(norms.weigh(0, 0, reports(4, 1)).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace sirtaki::local_updates
