// Statistics that hold for all ranks, made from their reports.
#include "runtime/local_updates/controller/round_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/config/spec_keys.h"
#include "tests/unit/local_updates/controller/numbers.h"

namespace sirtaki::local_updates {
namespace {

std::vector<RankRound> ranks_at(std::int64_t step, std::size_t ranks = 4) {
  RankRound rank;
  rank.step = step;
  rank.step_us = 10'000;
  rank.lr = 0.1;
  rank.loss_known = true;
  rank.loss_before = rank.loss_after = 2;
  return std::vector<RankRound>(ranks, rank);
}

TEST(RoundStats, WaitingForALateRankIsNoWaitForTheLink) {
  std::vector<RankRound> ranks = ranks_at(8);
  for (RankRound& rank : ranks) {
    rank.stall_us = 1'500;
  }
  ranks[2].stall_us = 40;
  ranks[2].step_us = 11'500;
  const RoundStats stats = agree(ranks).value();
  EXPECT_EQ(stats.stall_us, 40);
  EXPECT_EQ(stats.step_us, 11'500);
  ranks[1].step_us = ranks[1].stall_us = 0;
  EXPECT_EQ(agree(ranks).value().stall_us, 40) << "a rank that has measured nothing says nothing";
}

TEST(RoundStats, TheSlowestLinkAndTheFewestStepsCount) {
  std::vector<RankRound> ranks = ranks_at(8, 3);
  ranks[0].transfer_us = 7;
  ranks[1].dense_us = 9;
  ranks[2].longest_us = 5;
  ranks[1].steps_left = 20;
  ranks[2].steps_left = 12;
  ranks[2].late_tags = 1;
  ranks[0].now_us = 99;
  for (std::size_t r = 0; r < 3; ++r) {
    ranks[r].digest = 10 + r;
  }
  const RoundStats stats = agree(ranks).value();
  EXPECT_EQ(stats.transfer_us, 7);
  EXPECT_EQ(stats.dense_us, 9);
  EXPECT_EQ(stats.longest_us, 5);
  EXPECT_EQ(stats.steps_left, 12);
  EXPECT_EQ(stats.late_tags, 1);
  EXPECT_EQ(stats.now_us, 99);
  EXPECT_EQ(stats.digests, (std::vector<std::uint64_t>{10, 11, 12}));
  EXPECT_TRUE(check(stats, 3, 1).ok());
}

TEST(RoundStats, OneWrongLearningRateChangesNothing) {
  for (const std::size_t count : {std::size_t{2}, std::size_t{3}, std::size_t{4}}) {
    for (std::size_t sick = 0; sick < count; ++sick) {
      std::vector<RankRound> ranks = ranks_at(8, count);
      ranks[sick].lr *= 100;
      EXPECT_EQ(agree(ranks).value().lr_pico, kDecimalOne / 10) << sick << " of " << count;
    }
  }
  std::vector<RankRound> ranks = ranks_at(8);
  ranks[0].lr = -1;
  EXPECT_EQ(agree(ranks).value().lr_pico, kDecimalOne / 10);
  for (RankRound& rank : ranks) {
    rank.lr = -1;
  }
  EXPECT_EQ(agree(ranks).value().lr_pico, RoundStats::kUnknown);
}

TEST(RoundStats, LossesOfAnySizeAreTaken) {
  struct Case {
    double loss;
    std::int64_t e6;
    bool finite;
  };
  for (const Case& c : {Case{2.5, 2'500'000, true},
                        {-1e-6, -1, true},
                        {-300, -300'000'000, true},
                        {1e12, RoundStats::kMaxLoss, true},
                        {-1e300, -RoundStats::kMaxLoss, true},
                        {kInfinity, 0, false},
                        {std::nan(""), 0, false}}) {
    std::vector<RankRound> ranks = ranks_at(8);
    for (RankRound& rank : ranks) {
      rank.loss_after = c.loss;
    }
    const RoundStats stats = agree(ranks).value();
    EXPECT_TRUE(check(stats, 4, 1).ok()) << c.loss;
    EXPECT_EQ(stats.loss_finite, c.finite) << c.loss;
    EXPECT_EQ(stats.loss_known, c.finite);
    EXPECT_EQ(stats.loss_after_e6, c.e6) << c.loss;
  }
}

TEST(RoundStats, TheLossIsTheMedianOfThoseThatAreKnown) {
  std::vector<RankRound> ranks = ranks_at(8);
  ranks[0].loss_after = 4;
  ranks[1].loss_after = 3;
  ranks[3].loss_known = false;
  ranks[3].loss_after = kInfinity;
  EXPECT_TRUE(agree(ranks).value().loss_finite);
  EXPECT_EQ(agree(ranks).value().loss_after_e6, 3'000'000) << "of 4, 3 and 2";
  ranks[3].loss_known = true;
  ranks[3].loss_after = 1;
  EXPECT_EQ(agree(ranks).value().loss_after_e6, 2'000'000) << "of 4, 3, 2 and 1";
  for (RankRound& rank : ranks) {
    rank.loss_known = false;
  }
  EXPECT_FALSE(agree(ranks).value().loss_known);
}

TEST(RoundStats, OneRanksLossMovesNothing) {
  const std::vector<double> losses = {0.1, 0.2, 0.5, 0.6};
  for (const std::size_t count : {2U, 3U, 4U}) {
    for (const double loss : {5.0, 1e30, kInfinity, std::nan("")}) {
      for (std::size_t sick = 0; sick < count; ++sick) {
        std::vector<RankRound> ranks = ranks_at(8);
        ranks.resize(count);
        for (std::size_t r = 0; r < count; ++r) {
          ranks[r].loss_before = ranks[r].loss_after = losses[r];
        }
        ranks[sick].loss_after = loss;
        const RoundStats stats = agree(ranks).value();
        EXPECT_TRUE(stats.loss_finite);
        EXPECT_EQ(stats.loss_after_e6, stats.loss_before_e6) << loss << " on rank " << sick << " of " << count;
      }
    }
  }
}

TEST(RoundStats, MostRanksLossesCount) {
  std::vector<RankRound> ranks = ranks_at(8);
  ranks[0].loss_after = ranks[1].loss_after = ranks[3].loss_after = std::nan("");
  EXPECT_FALSE(agree(ranks).value().loss_finite);
  ranks[0].loss_after = ranks[1].loss_after = ranks[3].loss_after = 6;
  EXPECT_EQ(agree(ranks).value().loss_after_e6, 6'000'000);
}

TEST(RoundStats, RanksThatDoNotDoTheSameAreNamed) {
  const std::vector<std::pair<std::function<void(RankRound&)>, std::string>> cases = {
      {[](RankRound& rank) { rank.step = 9; }, "rank 2 is at step 9, rank 0 at step 8"},
      {[](RankRound& rank) { rank.encoding = 1; }, "encode differences differently"},
      {[](RankRound& rank) { rank.encoding = 8; }, "unknown encoding of differences, 8"},
      {[](RankRound& rank) { rank.digest = 7; }, "compares digests"},
  };
  for (const auto& [edit, part] : cases) {
    std::vector<RankRound> ranks = ranks_at(8);
    edit(ranks[2]);
    const auto stats = agree(ranks);
    ASSERT_FALSE(stats);
    EXPECT_EQ(stats.status().code(), Code::kMismatch);
    EXPECT_EQ(stats.status().blame().rank, 2);
    EXPECT_NE(stats.status().text().find(part), std::string_view::npos) << stats.status().text();
  }
}

TEST(RoundStats, VarianceIsTheMeanOfSquaresLessTheSquareOfTheMean) {
  Merge merge;
  merge.ranks = {{4, 1, 1}, {8, 1, 1}, {1e9, 1, 1}, {6, 1, 2}};
  merge.weights = {1, 1, 0, 2};
  merge.mean_norm2 = 2;
  EXPECT_EQ(variance_of(merge), 4);
  merge.steps = 4;
  EXPECT_EQ(one_step_variance({merge, merge}), 1) << "two fragments, 4^1.5 = 8";
  merge.weights = {0, 0, 0, 0};
  EXPECT_EQ(variance_of(merge), 0);
  merge.weights = {1, 1, 0, 2};
  merge.mean_norm2 = 7;
  EXPECT_EQ(variance_of(merge), 0) << "rounding cannot make it negative";
}

}  // namespace
}  // namespace sirtaki::local_updates
