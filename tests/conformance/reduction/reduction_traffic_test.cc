// The traffic that reductions report, compared with the bytes and latencies between hosts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/conformance/reduction/reduction_support.h"

namespace sirtaki::engine::testing {
namespace {

constexpr int kTrafficRanks = 4;
constexpr Duration kTrafficLatency = std::chrono::milliseconds(1);

struct Sums {
  const char* codec;
  ReductionKind reduction;
};

// Two allreduces in one exchange each, or in two. Ranks are on hosts of their own, or three of them on one.
TEST(ReductionTraffic, OfAllreducesIsWhatLeavesTheFullestHost) {
  for (const Sums& sums : {Sums{"powersgd", ReductionKind::kLowRank}, Sums{"block_topk", ReductionKind::kShared}}) {
    for (const std::string& world : {std::string("local"), std::string("hosts")}) {
      for (const std::size_t limit : {std::size_t{0}, std::size_t{16} << 10}) {
        const auto together = [&world](Rank a, Rank b) { return a == b || (world == "hosts" && a != 1 && b != 1); };
        double crossed = 0;
        TimePoint last;
        net::testing::WorldOptions options;
        options.direct.exchange_bytes = limit;
        options.local.delay = [&](Rank from, Rank to, std::size_t) {
          return together(from, to) ? Duration(0) : kTrafficLatency;
        };
        options.local.fate = [&](Rank from, const net::Envelope& envelope, std::size_t bytes) {
          crossed += together(0, from) && !together(from, envelope.peer) ? static_cast<double>(bytes) : 0;
          return net::MessageFate::kDeliver;
        };
        const compression::PayloadCodec* codec = compression::find_payload_codec(sums.codec);
        ASSERT_NE(codec, nullptr);
        const Scheme scheme{codec, sums.reduction, example_params(*codec, true), kTrafficRanks};
        const std::vector<std::size_t> sizes = {1 << 12};
        Group group(scheme, sizes, world, options);
        Gradients gradients(kTrafficRanks, Tensors(1, Floats(sizes[0], 0.5F)));
        const TimePoint began = group.now();
        for (const Status& status : group.run(make_layout(scheme, sizes, Cut::kWhole), gradients)) {
          ASSERT_TRUE(status.ok()) << status.to_string();
        }
        const net::Traffic& told = group.allreduced();
        const std::string what = std::string(sums.codec) + ", " + world + ", limit " + std::to_string(limit);
        EXPECT_EQ(told.exchanges, limit == 0 ? 4 : 2) << what;
        EXPECT_EQ(group.now() - began, told.exchanges * kTrafficLatency) << what;
        EXPECT_NEAR(told.bytes, crossed, limit == 0 ? 64 : 0) << what << ": blocks differ by one number";
      }
    }
  }
}

}  // namespace
}  // namespace sirtaki::engine::testing
