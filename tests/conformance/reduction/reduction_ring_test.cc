// Lengths of messages in a ring, and the hop at which they become dense.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <random>

#include "tests/conformance/reduction/reduction_support.h"

namespace sirtaki::engine::testing {
namespace {

constexpr int kRingRanks = 4;
constexpr std::int64_t kCell = 4096;  // a stripe of 16 groups, one for each rank
const std::vector<std::size_t> kRingSizes = {kRingRanks * kCell};

Scheme scheme_of(std::int64_t keep) {
  const compression::PayloadCodec& codec = *compression::find_payload_codec("group_topk");
  return {&codec, ReductionKind::kRing, {1, 256, keep, static_cast<std::int64_t>(DType::kF32), 0, 0}, kRingRanks};
}

// Returns the bytes of a cell that `ranks` ranks have added to, each with `entries`: number of entries, number of the
// only tile, entries.
std::int64_t cell_bytes(std::int64_t ranks, std::int64_t entries) {
  return std::min<std::int64_t>(4 + 2 + 6 * ranks * entries, 4 * kCell);
}

Gradients random_gradients(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Gradients gradients(kRingRanks);
  for (Tensors& tensors : gradients) {
    std::generate_n(std::back_inserter(tensors.emplace_back()), kRingSizes[0], [&] { return normal(random); });
  }
  return gradients;
}

TEST(ReductionRing, IsSparseUntilThatIsNoShorter) {
  // Sparse to the end; dense from the second hop on; dense from the first hop on.
  for (const std::int64_t keep : {3, 100, 200}) {
    SCOPED_TRACE("keeps " + std::to_string(keep));
    const Scheme scheme = scheme_of(keep);
    ASSERT_EQ(scheme.stripe_of(kRingSizes[0]), kCell);
    Group group(scheme, kRingSizes, "local");
    Reference reference(scheme, kRingSizes);
    Gradients gradients = random_gradients(1);
    const Tensors expected = reference.run(gradients, ReduceOp::kSum);
    for (const Status& status : group.run(make_layout(scheme, kRingSizes, Cut::kWhole), gradients)) {
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    for (const Tensors& results : gradients) {
      EXPECT_EQ(results, expected);
    }
    std::int64_t cell = (kRingRanks - 1) * cell_bytes(kRingRanks, 16 * keep);
    for (std::int64_t hop = 1; hop < kRingRanks; ++hop) {
      cell += cell_bytes(hop, 16 * keep);
    }
    const std::int64_t header = 1 + 4 * kRingRanks;
    const std::vector<std::int64_t>& sent = group.sent_bytes();
    EXPECT_EQ(std::accumulate(sent.begin(), sent.end(), std::int64_t{0}),
              kRingRanks * (cell + (kRingRanks - 1) * header));
  }
}

}  // namespace
}  // namespace sirtaki::engine::testing
