// The bytes of small allreduces: all data to all ranks, or in two steps where the caller knows a slow link.
#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <vector>

#include "scheduler/plan/plan.h"
#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net::testing {
namespace {

constexpr int kFourRanks = 4;
constexpr std::size_t kNumbers = 1000;

// Runs an allreduce of kNumbers float32 with a limit for each rank; adds the bytes of all messages to `sent`.
std::vector<Status> reduce(const std::vector<std::size_t>& limits, std::size_t& sent, Traffic& expected) {
  WorldOptions options;
  options.local.fate = [&sent](Rank, const Envelope&, std::size_t bytes) {
    sent += bytes;
    return MessageFate::kDeliver;
  };
  const auto world = make_local_world(kFourRanks, options);
  std::vector<std::vector<float>> numbers(kFourRanks, std::vector<float>(kNumbers, 1.0F));
  std::vector<CollectiveArgs> args(kFourRanks);
  for (std::size_t rank = 0; rank < kFourRanks; ++rank) {
    args[rank].tag = OpTag{1};
    args[rank].exchange_bytes = limits[rank];
    args[rank].out = std::as_writable_bytes(std::span(numbers[rank]));
    args[rank].in = args[rank].out;
  }
  expected = world->at(0).traffic(args[0]);
  return run_on_all(*world, std::move(args));
}

TEST(OneExchange, SendsTwiceTheBytesOfTwoStepsAmongFourRanks) {
  constexpr std::size_t kBytes = kNumbers * sizeof(float);
  for (const std::size_t limit : {std::numeric_limits<std::size_t>::max(), kBytes, kBytes - 1, std::size_t{0}}) {
    std::size_t sent = 0;
    Traffic expected;
    const auto results = reduce(std::vector<std::size_t>(kFourRanks, limit), sent, expected);
    ASSERT_EQ(results.size(), static_cast<std::size_t>(kFourRanks));
    for (const Status& status : results) {
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    EXPECT_EQ(sent, limit >= kBytes ? kFourRanks * 3 * kBytes : kFourRanks * 3 * kBytes / 2) << "limit " << limit;
    EXPECT_EQ(static_cast<double>(sent), kFourRanks * expected.bytes);
    EXPECT_EQ(expected.exchanges, limit >= kBytes ? 1 : 2);
  }
}

TEST(OneExchange, AnUnknownLinkLeavesTheChoiceToTheBackend) {
  const auto world = make_local_world(2, {});
  for (const auto& [bytes, exchanges] : std::vector<std::pair<std::size_t, int>>{{32 << 10, 1}, {1 << 20, 2}}) {
    std::vector<std::byte> memory(bytes);
    CollectiveArgs args;
    args.exchange_bytes = static_cast<std::size_t>(scheduler::kAnySize);
    args.in = args.out = memory;
    EXPECT_EQ(world->at(0).traffic(args).exchanges, exchanges) << bytes;
  }
}

TEST(OneExchange, DifferentLimitsAreAnError) {
  std::size_t sent = 0;
  Traffic expected;
  for (const std::size_t others : {std::size_t{0}, kUsualExchange}) {
    const auto results = reduce({others, others, others == 0 ? 1U << 20 : 0U, others}, sent, expected);
    ASSERT_EQ(results.size(), static_cast<std::size_t>(kFourRanks)) << "did not end";
    for (const Status& status : results) {
      EXPECT_EQ(status.code(), Code::kMismatch) << status.to_string();
    }
  }
}

}  // namespace
}  // namespace sirtaki::net::testing
