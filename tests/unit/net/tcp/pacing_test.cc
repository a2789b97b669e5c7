// Lead of a rank over the other ranks within one reduction, in virtual time.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <random>
#include <vector>

#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net::testing {
namespace {

constexpr int kPacedRanks = 5;
constexpr std::uint64_t kSeed = 11;

// Counts the messages from each rank and to each rank, at the time of sending.
struct Traffic {
  std::vector<int> from = std::vector<int>(kPacedRanks);
  std::vector<int> to = std::vector<int>(kPacedRanks);
  int furthest = 0;  // largest number by which messages from a rank have exceeded those to it

  void add(Rank sender, Rank receiver) {
    const int sent = ++from[static_cast<std::size_t>(sender)];
    ++to[static_cast<std::size_t>(receiver)];
    furthest = std::max(furthest, sent - to[static_cast<std::size_t>(sender)]);
  }
};

// Delays every message by up to one millisecond, and messages from rank 0 by ten.
WorldOptions uneven_links(Traffic& traffic, std::mt19937_64& random) {
  WorldOptions options;
  options.local.delay = [&random](Rank from, Rank, std::size_t) {
    return Duration(static_cast<std::int64_t>(random() % 1'000'000) * (from == 0 ? 10 : 1));
  };
  options.local.fate = [&traffic](Rank from, const Envelope& envelope, std::size_t) {
    traffic.add(from, envelope.peer);
    return MessageFate::kDeliver;
  };
  return options;
}

TEST(Pacing, NoRankOfAnAllreduceRunsAheadOfWhatItReceives) {
  Traffic traffic;
  std::mt19937_64 random(kSeed);
  const auto world = make_local_world(kPacedRanks, uneven_links(traffic, random));
  std::vector<std::vector<float>> values(kPacedRanks, std::vector<float>((2 << 20) + 3, 1.0F));
  std::vector<CollectiveArgs> args(kPacedRanks);
  for (std::size_t rank = 0; rank < kPacedRanks; ++rank) {
    args[rank].tag = OpTag(1);
    args[rank].in = std::as_bytes(std::span(values[rank]));
    args[rank].out = std::as_writable_bytes(std::span(values[rank]));
  }
  for (const Status& status : run_on_all(*world, args)) {
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  for (const auto& result : values) {
    EXPECT_EQ(result, std::vector<float>(result.size(), kPacedRanks));
  }
  EXPECT_GE(traffic.from[0], 2 * 25 * (kPacedRanks - 1));
  EXPECT_LE(traffic.furthest, 2);
}

// Ranks with a large block receive many messages and ranks without a block none; no rank waits for missing messages.
TEST(Pacing, BlocksOfAnySizesEnd) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 50; ++round) {
    Traffic traffic;
    const auto world = make_local_world(kPacedRanks, uneven_links(traffic, random));
    std::vector<std::int64_t> counts(kPacedRanks);
    for (std::int64_t& count : counts) {
      count = random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 200'000);
    }
    const auto whole = static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    const std::vector<float> in(whole, 1.0F);
    std::vector<std::vector<float>> out;
    std::vector<CollectiveArgs> args(kPacedRanks);
    for (std::size_t rank = 0; rank < kPacedRanks; ++rank) {
      out.emplace_back(static_cast<std::size_t>(counts[rank]));
      args[rank].kind = OpKind::kReduceScatter;
      args[rank].tag = OpTag(1);
      args[rank].recv_counts = counts;
      args[rank].in = std::as_bytes(std::span(in));
      args[rank].out = std::as_writable_bytes(std::span(out[rank]));
    }
    for (const Status& status : run_on_all(*world, args)) {
      EXPECT_TRUE(status.ok()) << "seed " << kSeed << ", round " << round << ": " << status.to_string();
    }
    for (const auto& result : out) {
      EXPECT_EQ(result, std::vector<float>(result.size(), kPacedRanks)) << "seed " << kSeed << ", round " << round;
    }
  }
}

}  // namespace
}  // namespace sirtaki::net::testing
