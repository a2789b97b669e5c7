// Encodings of differences that `auto` chooses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/local_updates/controller/training.h"

namespace sirtaki::local_updates {
namespace {

// Plays rounds; returns the number of changes of the encoding of local steps.
std::int64_t changes_of_bits(Training& training, int rounds) {
  std::int64_t changes = 0;
  for (int i = 0; i < rounds; ++i) {
    const Interval before = training.current();
    const Interval now = training.round().interval;
    changes += now.mode == Mode::kLocal && now.encoding != before.encoding ? 1 : 0;
  }
  return changes;
}

TEST(Encodings, AutoEscalatesInOrder) {
  struct Case {
    std::int64_t dense_us;  // of steps of 30 ms
    std::string text;
    std::int64_t steps;
    Mode mode;
    Reason reason;
    Escalation escalation;
  };
  const std::string compress = std::string("auto:compress=on,warmup=0");
  const std::string dense = "auto:warmup=0";
  for (const Case& c :
       std::vector<Case>{{18'000, compress, 1, Mode::kSync, Reason::kFastLink, Escalation::kNone},
                         {60'000, compress, 4, Mode::kLocal, Reason::kShortest, Escalation::kOverlap},
                         {96'000, compress, 4, Mode::kLocal, Reason::kShortest, Escalation::kOverlap},
                         {120'000, compress, 4, Mode::kLocal, Reason::kShortest, Escalation::kCompress},
                         {120'000, dense, 5, Mode::kLocal, Reason::kLink, Escalation::kLonger},
                         {384'000, compress, 4, Mode::kLocal, Reason::kShortest, Escalation::kCompress},
                         {480'000, compress, 4, Mode::kLocal, Reason::kShortest, Escalation::kCompress},
                         {4'800'000, compress, 7, Mode::kLocal, Reason::kLink, Escalation::kLonger},
                         {480'000, dense, 20, Mode::kLocal, Reason::kLink, Escalation::kLonger},
                         {1'800'000, dense, 64, Mode::kLocal, Reason::kLinkAtMost, Escalation::kStall},
                         {72'000'000, compress, 64, Mode::kLocal, Reason::kLinkAtMost, Escalation::kStall}}) {
    Training training(c.text);
    training.dense_us = c.dense_us;
    training.converge();
    const Interval& now = training.current();
    EXPECT_EQ(now.steps, c.steps) << c.text << " " << c.dense_us;
    EXPECT_EQ(now.mode, c.mode);
    EXPECT_EQ(now.reason, c.reason) << to_string(now);
    EXPECT_EQ(now.escalation, c.escalation) << to_string(now);
  }
}

// Each link takes the most bits with which four steps hide a merge, and only the slowest more steps.
TEST(Encodings, AutoSpendsBitsBeforeSteps) {
  struct Case {
    std::int64_t dense_us;  // of steps of 30 ms
    std::int64_t encoding;
    std::int64_t steps;
  };
  for (const Case& c :
       std::vector<Case>{{84'000, 0, 4}, {360'000, 1, 4}, {1'440'000, 2, 4}, {2'880'000, 3, 4}, {5'760'000, 3, 8}}) {
    Training training("auto:compress=on,warmup=0");
    training.dense_us = c.dense_us;
    const std::int64_t changes = changes_of_bits(training, 100);
    EXPECT_EQ(training.current().encoding, c.encoding) << c.dense_us;
    EXPECT_EQ(training.current().steps, c.steps) << c.dense_us;
    EXPECT_LE(changes, 1) << c.dense_us << ": predicted at once";
  }
}

// Fewer bits make no latency shorter, more steps hide it.
TEST(Encodings, AutoHidesALatencyByStepsNotByBits) {
  struct Case {
    std::int64_t step_us;
    std::int64_t dense_us;  // of the bytes
    std::int64_t encoding;
    std::int64_t steps;
    std::int64_t delay;
  };
  for (const Case& c : std::vector<Case>{{36'000, 250'000, 2, 4, 2},
                                         {36'000, 80'000, 1, 4, 2},
                                         {36'000, 40'000, 0, 4, 3},
                                         {5'000, 8'000, 1, 13, 12}}) {
    Training training("auto:compress=on,warmup=0");
    training.step_us = c.step_us;
    training.dense_us = c.dense_us;
    training.latency_us = 20'000;
    training.longest_permille = 1000;
    const std::int64_t changes = changes_of_bits(training, 100);
    const Interval& now = training.current();
    EXPECT_EQ(now.encoding, c.encoding) << c.step_us << " " << c.dense_us << " " << to_string(now);
    EXPECT_EQ(now.steps, c.steps) << c.step_us << " " << c.dense_us << " " << to_string(now);
    EXPECT_EQ(now.delay, c.delay) << c.step_us << " " << c.dense_us << " " << to_string(now);
    EXPECT_LE(changes, 1) << c.step_us << " " << c.dense_us << ": predicted at once";
  }
}

TEST(Encodings, ALatencyWithStepsOfVaryingLengthChangesNoBits) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    std::mt19937_64 random(seed);
    Training training("auto:compress=on,warmup=0");
    training.dense_us = 100'000;
    training.latency_us = 80'000;
    training.edit = [&random](RoundStats& stats) {
      stats.step_us = std::uniform_int_distribution<std::int64_t>(24'000, 36'000)(random);
    };
    const std::int64_t changes = changes_of_bits(training, 400);
    EXPECT_LE(changes, 2) << "seed " << seed;
    EXPECT_GT(training.current().steps, 4) << "seed " << seed;
  }
}

TEST(Encodings, AFixedCodecCountsWithItsOwnBits) {
  Training training("auto:warmup=0");
  training.latency_us = 20'000;
  training.step_us = 36'000;
  training.dense_us = 250'000;
  training.edit = [&](RoundStats& stats) {
    if (training.current().mode == Mode::kLocal) {
      stats.encoding = 1;
      stats.transfer_us = stats.longest_us = 62'000;
    }
  };
  training.rounds(60);
  EXPECT_EQ(training.current().steps, 5) << to_string(training.current());
  EXPECT_EQ(training.current().delay, 4) << to_string(training.current());
}

TEST(Encodings, ALatencyThatIsGoneIsForgotten) {
  Training training("auto:compress=on,warmup=0");
  training.step_us = 5'000;
  training.dense_us = 12'000;
  training.latency_us = 20'000;
  training.rounds(60);
  ASSERT_GT(training.current().steps, 8);
  training.latency_us = 0;
  training.rounds(60);
  EXPECT_EQ(training.current().steps, 4) << to_string(training.current());
}

TEST(Encodings, AFixedDelayHidesNoLatency) {
  Training training("auto:compress=on,warmup=0,delay=1");
  training.step_us = 5'000;
  training.dense_us = 8'000;
  training.latency_us = 20'000;
  training.rounds(30);
  EXPECT_EQ(training.current().steps, 4);
  EXPECT_EQ(training.current().delay, 1);
}

TEST(Encodings, TheFirstMergeOnAnUnknownLinkHasFewBits) {
  Training training("auto:compress=on,warmup=0");
  training.dense_us = 2'880'000;
  training.edit = [](RoundStats& stats) { stats.dense_us = stats.transfer_us = stats.longest_us = 0; };
  while (training.current().mode == Mode::kSync) {
    training.round();
  }
  EXPECT_EQ(training.current().encoding, 3);
}

TEST(Encodings, ARoundBeforeTheFirstMergeChangesNoEncoding) {
  Training training("auto:compress=on,warmup=0");
  training.dense_us = 60'000;
  while (training.current().mode == Mode::kSync) {
    training.round();
  }
  const std::int64_t chosen = training.current().encoding;
  ASSERT_LT(chosen, 3);
  training.edit = [](RoundStats& stats) { stats.dense_us = stats.transfer_us = stats.longest_us = 0; };
  EXPECT_EQ(training.round().interval.encoding, chosen);
}

// Residuals stay in the models, so fewer bits move the models of the ranks apart.
TEST(Encodings, ResidualsOfAnotherEncodingAreNoAlarm) {
  Training training("auto:compress=on,warmup=0");
  training.dense_us = 360'000;
  training.rounds(30);
  ASSERT_EQ(training.current().encoding, 1);
  training.report = [&](std::vector<RankReport>& ranks) {
    std::ranges::for_each(ranks, [&](auto& rank) { rank.norm2 *= training.current().encoding > 1 ? 5 : 1; });
  };
  training.dense_us = 1'440'000;
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(training.round().alarms.empty()) << i;
  }
  EXPECT_EQ(training.current().encoding, 2);
}

TEST(Encodings, AutoFollowsALinkToMoreBitsAndFewer) {
  Training training("auto:compress=on,warmup=0");
  for (const auto& [dense_us, encoding] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {360'000, 1}, {2'880'000, 3}, {1'440'000, 3}, {1'000'000, 2}, {240'000, 1}}) {
    training.dense_us = dense_us;
    training.converge();
    EXPECT_EQ(training.current().encoding, encoding) << dense_us;
    EXPECT_EQ(training.current().steps, 4) << dense_us;
  }
}

TEST(Encodings, AutoCompressesWhereMergesWouldComeLate) {
  Training training("auto:compress=on,warmup=0");
  training.dense_us = 60'000;
  training.longest_permille = 500;
  training.converge();
  EXPECT_EQ(training.current().delay, 1);
  EXPECT_EQ(training.current().encoding, 0);
  training.longest_permille = 1000;
  training.converge();
  EXPECT_EQ(training.current().delay, 1);
  EXPECT_GT(training.current().encoding, 0);
  training.converge();
  EXPECT_GT(training.current().encoding, 0) << "it stays so";
  training.longest_permille = 400;
  training.converge();
  EXPECT_EQ(training.current().encoding, 0);
}

TEST(Encodings, AutoTakesNoMoreStepsBeforeItKnowsWhatCompressedDifferencesNeed) {
  Training training("auto:compress=on,warmup=0");
  training.dense_us = 360'000;  // twelve steps, compressed three
  // Merges are complete some rounds after they were sent.
  int late = 0;
  training.measure = [&](std::vector<RankRound>& ranks) {
    late += ranks.front().encoding > 0 ? 1 : 0;
    for (RankRound& rank : ranks) {
      if (rank.encoding > 0 && late < 4) {
        rank.encoding = 0;
        rank.transfer_us = rank.longest_us = rank.dense_us = 0;
      }
    }
  };
  for (int i = 0; i < 40; ++i) {
    EXPECT_LE(training.round().interval.steps, 4) << i;
  }
  EXPECT_EQ(training.current().steps, 4);
  EXPECT_GT(training.current().encoding, 0);
}

}  // namespace
}  // namespace sirtaki::local_updates
