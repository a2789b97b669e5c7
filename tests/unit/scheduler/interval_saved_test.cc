// The saved state of an interval controller: goes on as if nothing had happened.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/scheduler/interval_training.h"

namespace sirtaki::scheduler::interval {
namespace {

using Saved = std::vector<std::int64_t>;

constexpr std::size_t kRanks = 4;

Result<std::unique_ptr<IntervalController>> restored(const IntervalOptions& options, const Saved& saved,
                                                     std::size_t ranks = kRanks) {
  return IntervalController::restore(options, ranks, Training::kFragments, saved);
}

// Rounds of a training and of a controller that is fed the same.
void expect_the_same(Training& training, IntervalController& other, int rounds) {
  const auto decide_both = [&](const RoundStats& stats) {
    const Decision one = training.decide(stats);
    const auto two = other.decide(stats);
    ASSERT_TRUE(two) << two.status().to_string();
    EXPECT_EQ(one.digest, two->digest);
    EXPECT_EQ(one.interval, two->interval);
  };
  for (int i = 0; i < rounds; ++i) {
    decide_both(training.current().mode == Mode::kDrain ? training.drain() : training.next());
  }
}

IntervalOptions with_hook() {
  IntervalOptions options;
  options.policy = PolicyId::kCallable;
  options.warmup = 0;
  options.hook = [](const RoundStats& stats, const Interval&) { return 2 + stats.step % 7; };
  return options;
}

TEST(IntervalSaved, ItGoesOnAsIfNothingHadHappened) {
  std::vector<IntervalOptions> all = {with_hook()};
  for (const std::string text : {"auto", "auto:compress=on,warmup=0", "qsr:warmup=0", "adacomm:warmup=10",
                                 "divergence:warmup=0", "7:guard=off", "diloco", "5:delay=9"}) {
    all.push_back(options_of(text));
  }
  for (const IntervalOptions& options : all) {
    for (const int rounds : {1, 3, 30, 60}) {
      SCOPED_TRACE("policy " + std::to_string(static_cast<int>(options.policy)) + ", " + std::to_string(rounds));
      Training training(options);
      training.dense_us = 200'000;
      training.report = [](std::vector<RankReport>& ranks) { ranks[1].norm2 *= 30; };
      training.rounds(rounds);
      const Saved saved = training.controller().saved();
      auto other = restored(options, saved);
      ASSERT_TRUE(other) << other.status().to_string();
      EXPECT_EQ((*other)->saved(), saved);
      EXPECT_EQ((*other)->current(), training.current());
      expect_the_same(training, **other, 30);
      EXPECT_FALSE(restored(options, saved, kRanks + 1)) << "other ranks";
      EXPECT_FALSE(IntervalController::restore(options, kRanks, Training::kFragments + 1, saved)) << "other fragments";
      EXPECT_FALSE(restored(options, Saved(saved.begin(), saved.end() - 1)));
      EXPECT_FALSE(restored(options, {}));
    }
  }
}

}  // namespace
}  // namespace sirtaki::scheduler::interval
