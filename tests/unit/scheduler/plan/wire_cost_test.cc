#include "scheduler/plan/wire_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "scheduler/policies/policy.h"

namespace sirtaki::scheduler {
namespace {

// Returns the bytes that a rank sends, counted from the messages of the collective.
std::int64_t sent(ReductionKind reduction, std::int64_t payload, std::int64_t ranks) {
  const std::int64_t others = ranks - 1;
  switch (reduction) {
    case ReductionKind::kGather:
      return others * payload;
    case ReductionKind::kScatter:
      return 2 * others * (payload / ranks);
    case ReductionKind::kCounts:  // four ranks: 2 bits to the owner, one of 9 values back
      return others * (payload / ranks) + others * (payload / ranks) * 2;
    default:
      return 0;
  }
}

TEST(WireCost, IsTheAllreduceInWhichARankSendsAsMuch) {
  constexpr std::int64_t kPayload = 1200;
  for (const int ranks : {2, 3, 4}) {
    for (const ReductionKind reduction : {ReductionKind::kGather, ReductionKind::kScatter, ReductionKind::kCounts}) {
      if (reduction == ReductionKind::kCounts && ranks != 4) {
        continue;
      }
      const std::int64_t equivalent = dense_equivalent(reduction, {kPayload, 0}, ranks);
      EXPECT_EQ(2 * (ranks - 1) * equivalent / ranks, sent(reduction, kPayload, ranks)) << ranks;
    }
  }
}

TEST(WireCost, GatherOfTwoIsAsShortAsScatter) {
  EXPECT_EQ(dense_equivalent(ReductionKind::kGather, {1000, 0}, 2),
            dense_equivalent(ReductionKind::kScatter, {1000, 0}, 2));
  EXPECT_GT(dense_equivalent(ReductionKind::kGather, {1000, 0}, 3),
            dense_equivalent(ReductionKind::kScatter, {1000, 0}, 3));
}

TEST(WireCost, WhatRanksAgreeOnIsReducedToo) {
  EXPECT_EQ(dense_equivalent(ReductionKind::kShared, {1000, 100'000, 24}, 4), 1024);
}

// Counted hop by hop, of a payload that is a P-th of each owner's.
std::int64_t sent_by_ring(std::int64_t payload, std::int64_t held, std::int64_t ranks) {
  std::int64_t sent = 0;
  for (std::int64_t hop = 1; hop < ranks; ++hop) {
    sent += std::min(hop * payload, held);
  }
  return sent + (ranks - 1) * std::min(ranks * payload, held);
}

TEST(WireCost, ARingGrowsUntilItIsDense) {
  EXPECT_EQ(dense_equivalent(ReductionKind::kRing, {1000, 100'000}, 4), 3000);
  for (const std::int64_t ranks : {2, 3, 4, 8, 15}) {
    for (const std::int64_t payload : {1, 700, 1000, 2500, 9999, 10'000, 20'000}) {
      const std::int64_t sent = sent_by_ring(payload, 10'000, ranks);
      const std::int64_t equivalent =
          dense_equivalent(ReductionKind::kRing, {payload, 10'000}, static_cast<int>(ranks));
      EXPECT_EQ(equivalent, (sent + 2 * ranks - 3) / (2 * ranks - 2)) << ranks << " ranks, payload " << payload;
      EXPECT_LE(equivalent, 10'000) << "a dense allreduce";
    }
  }
}

// Without a second selection, the union of all returns.
TEST(WireCost, ARingIsNoShorterThanAGatherOfFourFifthsOfDense) {
  constexpr std::int64_t kHeld = 1'000'000;
  for (int ranks = 2; ranks <= 15; ++ranks) {
    for (std::int64_t payload = 1; ranks * payload / 2 < kHeld * 4 / 5; payload += 1 + payload / 7) {
      EXPECT_GE(dense_equivalent(ReductionKind::kRing, {payload, kHeld}, ranks),
                dense_equivalent(ReductionKind::kGather, {payload, kHeld}, ranks))
          << ranks << " ranks, payload " << payload;
    }
  }
  EXPECT_LT(dense_equivalent(ReductionKind::kRing, {300'000, kHeld}, 8), kHeld);
  EXPECT_GT(dense_equivalent(ReductionKind::kGather, {300'000, kHeld}, 8), kHeld);
}

// On both sides of one bandwidth-delay product times P / ((P - 1) (P - 2)).
TEST(WireCost, TimesSayWhatTheRuleForGatherAndScatterSays) {
  const LinkFacts link{100'000, 125'000'000};
  for (const int ranks : {3, 4, 8}) {
    for (std::int64_t payload = 1000; payload < 200'000; payload += 997) {
      const Exchange gather{ReductionKind::kGather, dense_equivalent(ReductionKind::kGather, {payload, 0}, ranks)};
      const Exchange scatter{ReductionKind::kScatter, dense_equivalent(ReductionKind::kScatter, {payload, 0}, ranks)};
      const std::int64_t saved = exchange_ns(scatter, ranks, link) - exchange_ns(gather, ranks, link);
      if (std::abs(saved) > 1000) {  // bytes are rounded up
        EXPECT_EQ(saved > 0, gather_or_scatter(payload, false, {ranks, link}) == ReductionKind::kGather) << payload;
      }
    }
  }
  EXPECT_EQ(exchange_ns({ReductionKind::kGather, 0}, 8, link), link.latency_ns) << "all messages travel together";
  EXPECT_EQ(exchange_ns({ReductionKind::kDense, 0}, 8, link), 2 * link.latency_ns);
  EXPECT_EQ(exchange_ns({ReductionKind::kRing, 0}, 4, link), 5 * link.latency_ns) << "three hops between all-to-alls";
  EXPECT_EQ(exchange_ns({ReductionKind::kDense, 1000}, 1, link), 0) << "alone";
  EXPECT_EQ(exchange_ns({ReductionKind::kCounts, 125'000}, 4, {0, 125'000'000}), 1'500'000)
      << "1.5 ms for 3/2 of 125 kB";
}

// Bytes over the link of a host, counted: every rank to every rank of other hosts, or parts twice by one rank of each.
TEST(WireCost, OneExchangeSavesLatencyUpToASize) {
  for (const LinkFacts link : {LinkFacts{100'000, 2'500'000}, LinkFacts{50'000, 1'250'000'000}}) {
    for (const int hosts : {2, 3, 4, 8}) {
      for (const int here : {1, 2, 4}) {
        const auto most = most_in_one_exchange(hosts, here, link);
        if (hosts == 2 && here == 1) {
          EXPECT_EQ(most, std::numeric_limits<std::int64_t>::max()) << "both ways send as much";
          continue;
        }
        const auto saves = [&](std::int64_t bytes) {
          const double others = hosts - 1;
          const double once = static_cast<double>(bytes) * here * here * others;
          const double twice = static_cast<double>(bytes) * 2 * others / hosts;
          const double latency = static_cast<double>(link.latency_ns) / 1e9;  // messages travel together
          return latency - (once - twice) / static_cast<double>(link.bytes_per_second);
        };
        EXPECT_GE(saves(most), 0) << hosts << " hosts of " << here;
        EXPECT_LT(saves(most + 1), 0) << hosts << " hosts of " << here;
      }
    }
  }
}

TEST(WireCost, StaysWithinSixtyFourBits) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  EXPECT_EQ(dense_equivalent(ReductionKind::kGather, {kHuge / 1024, 0}, 2048), kHuge);
  EXPECT_EQ(dense_equivalent(ReductionKind::kGather, {1000, 0}, 1), 1000) << "alone";
  EXPECT_EQ(most_in_one_exchange(4, 1, {1'000'000'000, 1'000'000'000'000}), 666'666'666'666);
}

}  // namespace
}  // namespace sirtaki::scheduler
