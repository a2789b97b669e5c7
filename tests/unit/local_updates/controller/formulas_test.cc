#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "runtime/local_updates/controller/fixed_point.h"
#include "runtime/local_updates/controller/interval_policies.h"
#include "tests/unit/local_updates/controller/training.h"

namespace sirtaki::local_updates {
namespace {

TEST(FixedPoint, LogarithmsOfKnownNumbers) {
  const std::vector<std::pair<double, std::int64_t>> cases = {
      {1, 0},          {2, 65536},        {0.5, -65536},     {3, 103872},
      {10, 217705},    {1024, 655360},    {1e-12, -2612471}, {std::numeric_limits<double>::denorm_min(), -1074 * 65536},
      {0, kLogOfZero}, {-0.0, kLogOfZero}};
  for (const auto& [value, log] : cases) {
    EXPECT_EQ(log2_q16(value), log) << value;
  }
  EXPECT_EQ(log2_q16(std::int64_t{1}), 0);
  EXPECT_EQ(log2_q16(std::int64_t{3}), 103872);
  EXPECT_EQ(log2_q16(std::int64_t{1} << 62), 62 * 65536);
}

TEST(FixedPoint, LogarithmsAreWithinOneUnit) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 1000; ++i) {
      const double value =
          std::ldexp(1 + static_cast<double>(random() % 1'000'000) / 1e6, static_cast<int>(random() % 400) - 200);
      EXPECT_NEAR(static_cast<double>(log2_q16(value)), std::log2(value) * 65536, 1.5) << value;
    }
  }
}

TEST(FixedPoint, RootsOfRatiosRoundUp) {
  struct Case {
    std::int64_t num;
    std::int64_t den;
    std::int64_t root;
  };
  for (const Case& c : {Case{0, 1, 1},
                        {1, 1, 1},
                        {4, 1, 2},
                        {5, 1, 3},
                        {9, 1, 3},
                        {10, 1, 4},
                        {1, 4, 1},
                        {99, 11, 3},
                        {100, 11, 4},
                        {1'000'000, 1, 50}}) {
    EXPECT_EQ(root_of_ratio_up(c.num, c.den, 50), c.root) << c.num << " / " << c.den;
  }
}

TEST(Qsr, StepsGrowWithTheSquareOfTheLearningRateTheyLost) {
  struct Case {
    std::int64_t alpha;
    std::int64_t highest;
    std::int64_t lr;
    std::int64_t steps;
  };
  constexpr std::int64_t kMilli = kPico / 1000;
  const std::vector<Case> cases = {
      {kPico / 10'000 * 175, 0, 8 * kMilli, 4},   {kPico / 10'000 * 175, 0, 4 * kMilli, 19},
      {kPico / 10'000 * 175, 0, 2 * kMilli, 64},  {kPico / 10'000 * 175, 0, 16 * kMilli, 4},
      {0, 100 * kMilli, 100 * kMilli, 4},         {0, 100 * kMilli, 50 * kMilli, 16},
      {0, 100 * kMilli, 30 * kMilli, 44},         {0, 100 * kMilli, 25 * kMilli, 64},
      {0, 100 * kMilli, 10 * kMilli, 64},         {0, 100 * kMilli, 0, 64},
      {0, 100 * kMilli, RoundStats::kUnknown, 4}, {0, RoundStats::kMaxRate, RoundStats::kMaxRate, 4},
  };
  for (const Case& c : cases) {
    IntervalOptions options;
    options.alpha_pico = c.alpha;
    EXPECT_EQ(qsr_steps(options, c.highest, c.lr), c.steps) << c.alpha << " " << c.highest << " " << c.lr;
  }
}

TEST(AdaComm, StepsFollowTheRootOfLossOverLearningRate) {
  struct Case {
    std::int64_t loss;
    std::int64_t lr;
    std::int64_t steps;
  };
  constexpr std::int64_t kMilli = kPico / 1000;
  const IntervalOptions options = options_of("adacomm");
  for (const Case& c : std::vector<Case>{{2'000'000, 100 * kMilli, 4},
                                         {1'000'000, 100 * kMilli, 3},
                                         {500'000, 100 * kMilli, 2},
                                         {125'000, 100 * kMilli, 1},
                                         {100'000, 100 * kMilli, 1},
                                         {2'000'000, 10 * kMilli, 13},
                                         {1'000'000, 10 * kMilli, 9},
                                         {2'000'000, 5 * kMilli, 16}}) {
    EXPECT_EQ(adacomm_steps(options, {2'000'000, 100 * kMilli}, {c.loss, c.lr}), c.steps) << c.loss << " " << c.lr;
  }
  const LossAndRate largest = {RoundStats::kMaxLoss, RoundStats::kMaxRate};
  EXPECT_EQ(adacomm_steps(options_of("adacomm:base=4096,max=4096"), largest, largest), 64);
  EXPECT_EQ(adacomm_steps(options_of("adacomm:max=4096"), largest, {1, 1}), 256);
}

TEST(Divergence, StepsKeepTheVarianceAtTheThreshold) {
  struct Case {
    std::int64_t over;  // log2 of threshold over one step's variance, hundredths
    std::int64_t most;
    std::int64_t steps;
  };
  for (const Case& c : std::vector<Case>{{300, 64, 4},
                                         {299, 64, 3},
                                         {238, 64, 3},
                                         {237, 64, 2},
                                         {0, 64, 1},
                                         {-500, 64, 1},
                                         {900, 64, 64},
                                         {899, 64, 63},
                                         {900, 16, 16},
                                         {900, 1, 1}}) {
    EXPECT_EQ(divergence_steps(kOneQ16 * c.over / 100, 0, c.most), c.steps) << c.over << " " << c.most;
    EXPECT_EQ(divergence_steps(kOneQ16 * c.over / 100 - 77, -77, c.most), c.steps) << c.over << " " << c.most;
  }
}

}  // namespace
}  // namespace sirtaki::local_updates
