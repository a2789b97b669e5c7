// Properties of the interval controller that hold for any input: seeds, noise, links.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/unit/local_updates/controller/training.h"

namespace sirtaki::local_updates {
namespace {

constexpr std::uint64_t kSeeds = 20;
const std::vector<std::string> kTexts = {"auto",
                                         "auto:compress=on,warmup=0",
                                         "qsr:warmup=0",
                                         "adacomm:warmup=10",
                                         "divergence:warmup=0",
                                         "7:guard=off",
                                         "diloco",
                                         "5:delay=9",
                                         "qsr:base=3,max=17"};

std::int64_t between(std::mt19937_64& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
}

// Feeds a training with anything.
void make_wild(Training& training, std::mt19937_64& random) {
  training.report = [&random](std::vector<RankReport>& ranks) {
    for (RankReport& rank : ranks) {
      const bool broken = random() % 60 == 0;
      rank.norm2 = broken ? std::numeric_limits<double>::infinity()
                          : rank.norm2 * static_cast<double>(between(random, 0, 1'000)) / 500;
      rank.lr_sum = random() % 50 == 0 ? -1 : rank.lr_sum * (random() % 40 == 0 ? 0 : 1);
    }
  };
  training.lose = [&random](int, std::int64_t) { return random() % 50 == 0; };
  training.edit = [&random](RoundStats& stats) {
    stats.lr_pico = random() % 8 == 0 ? 0 : between(random, 1, kPico);
    stats.step_us = between(random, 0, 50'000);
    stats.dense_us = between(random, 0, 2'000'000);
    stats.transfer_us = stats.dense_us * LinkOptions().bits_permille[static_cast<std::size_t>(stats.encoding)] / 32'000;
    stats.longest_us = stats.transfer_us / 3;
    stats.stall_us = between(random, 0, 100'000);
    stats.loss_after_e6 = between(random, -100'000, 3'000'000);
    stats.loss_known = random() % 9 != 0;
    stats.loss_finite = random() % 40 != 0;
  };
}

TEST(IntervalProperties, RanksThatAreFedTheSameAgree) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const std::string& text : kTexts) {
      SCOPED_TRACE(text + ", seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      std::mt19937_64 same(seed);
      Training training(text);
      Training other(text);
      make_wild(training, random);
      make_wild(other, same);
      for (int i = 0; i < 60; ++i) {
        const Decision one = training.round();
        const Decision two = other.round();
        ASSERT_EQ(one.digest, two.digest);
        ASSERT_EQ(one.interval, two.interval);
        ASSERT_EQ(one.alarms, two.alarms);
      }
    }
  }
}

TEST(IntervalProperties, DigestsTellDifferentStatistics) {
  Training training("auto");
  Training other("auto");
  other.dense_us = 1'000;
  EXPECT_NE(training.round().digest, other.round().digest) << "even where the interval is the same";
  IntervalOptions options;
  options.policy = PolicyId::kCallable;
  options.most = 8;
  options.warmup = 0;
  std::vector<std::uint64_t> digests;
  for (const std::int64_t answer : {8, 9}) {
    options.hook = [answer](const RoundStats&, const Interval&) { return answer; };
    Training asked(options);
    asked.edit = [](RoundStats& stats) { stats.steps_left = 4; };
    digests.push_back(asked.round().digest);
  }
  EXPECT_NE(digests[0], digests[1]) << "even where the last round is cut";
}

TEST(IntervalProperties, IntervalsStayInBounds) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const std::string& text : kTexts) {
      SCOPED_TRACE(text + ", seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      const IntervalOptions options = options_of(text);
      const bool grows = options.policy != PolicyId::kFixed && options.policy != PolicyId::kDiLoCo;
      Training training(options);
      training.steps_left = between(random, 100, 3'000);
      make_wild(training, random);
      std::int64_t before = 1;
      for (int i = 0; i < 200 && training.step() < training.steps_left; ++i) {
        const Interval last = training.current();
        const Decision decision = training.round();
        const Interval now = decision.interval;
        ASSERT_EQ(decision.changed, std::tie(last.steps, last.delay, last.mode, last.encoding) !=
                                        std::tie(now.steps, now.delay, now.mode, now.encoding));
        ASSERT_GE(now.steps, 1);
        ASSERT_LE(now.steps, options.most);
        ASSERT_LE(now.steps, grows ? 2 * before : options.most) << "at most twice as long";
        ASSERT_GE(now.delay, 0);
        ASSERT_LT(now.delay, now.steps);
        ASSERT_TRUE(now.mode == Mode::kLocal || now.steps == 1);
        ASSERT_TRUE(now.mode != Mode::kLocal || training.step() >= training.steps_left ||
                    training.step() + now.steps <= training.steps_left);
        before = now.reason == Reason::kTrial ? before : now.steps;
      }
    }
  }
}

TEST(IntervalProperties, NoiseDoesNotChangeTheMode) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const std::int64_t dense_us : {18'000, 20'900, 21'000, 21'100, 22'000, 24'000, 30'000, 60'000, 300'000}) {
      SCOPED_TRACE(std::to_string(dense_us) + " us, seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      Training training("auto:warmup=0,compress=on");
      training.dense_us = dense_us;
      const auto noisy = [&](std::int64_t& value) { value = value * between(random, 970, 1030) / 1000; };
      training.edit = [&](RoundStats& stats) {
        for (std::int64_t* value :
             {&stats.step_us, &stats.dense_us, &stats.transfer_us, &stats.longest_us, &stats.stall_us}) {
          noisy(*value);
        }
      };
      int changes = 0;
      Mode before = training.current().mode;
      for (int i = 0; i < 400; ++i) {
        // A trial is no change unless it leads to one.
        if (training.round().interval.reason != Reason::kTrial) {
          changes += training.current().mode != before ? 1 : 0;
          before = training.current().mode;
        }
      }
      EXPECT_LE(changes, 1);
    }
  }
}

TEST(IntervalProperties, NoiseDoesNotChangeTheInterval) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Training training("auto:warmup=0");
    training.dense_us = between(random, 100'000, 1'000'000);
    training.edit = [&](RoundStats& stats) {
      stats.transfer_us = stats.transfer_us * between(random, 970, 1030) / 1000;
    };
    training.converge();
    int changes = 0;
    for (int i = 0; i < 300; ++i) {
      changes += training.round().changed ? 1 : 0;
    }
    EXPECT_LE(changes, 4);
  }
}

TEST(IntervalProperties, SlowerLinksNeverHaveShorterIntervals) {
  constexpr std::int64_t kModelBytes = 5'000'000;
  for (const std::string text : {"auto:warmup=0", "auto:warmup=0,compress=on", "auto"}) {
    for (const std::int64_t step_us : {20'000, 60'000, 200'000}) {
      std::vector<std::int64_t> intervals;
      for (const std::int64_t mbit : {40'000, 1'000, 100, 20}) {
        Training training(text);
        training.step_us = step_us;
        training.dense_us = kModelBytes * 8 * 3 / 2 / mbit;
        training.converge();
        intervals.push_back(training.current().steps);
      }
      EXPECT_EQ(intervals[0], 1) << text << ", loopback";
      EXPECT_TRUE(std::ranges::is_sorted(intervals))
          << text << ", " << step_us << " us: " << intervals[1] << " " << intervals[2] << " " << intervals[3];
      EXPECT_GT(intervals[3], 1);
    }
  }
}

}  // namespace
}  // namespace sirtaki::local_updates
