// Every codec with payloads by every reduction that supports it: results and residuals follow the definition of the
// codec.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "compression/block_selection.h"
#include "compression/counted_codes.h"
#include "tests/conformance/reduction/reduction_cases.h"

namespace sirtaki::engine::testing {
namespace {

// Calls body(shape of the tensor, elements) for every stripe.
template <class Body>
void for_each_stripe(const Scheme& scheme, const Layout& layout, Body body) {
  for (const Partition& partition : layout) {
    for (const Part& part : partition) {
      const compression::Shape shape = shape_of(kCaseSizes[part.tensor]);
      const std::int64_t stripe = scheme.stripe_of(kCaseSizes[part.tensor]);
      for (std::int64_t at = part.first; at < part.end; at += stripe) {
        body(shape, std::min(stripe, part.end - at));
      }
    }
  }
}

// Returns the bytes that all ranks send together, without headers; of a sum over ranks, before it is divided among
// them.
std::int64_t sent_in_all(const Scheme& scheme, const Layout& layout) {
  using compression::CountedCodes;
  const auto ranks = static_cast<std::size_t>(scheme.ranks);
  std::size_t bytes = 0;
  for_each_stripe(scheme, layout, [&](const compression::Shape& shape, std::int64_t numel) {
    const std::size_t payload = scheme.codec->payload_bytes(scheme.params, shape, numel);
    switch (scheme.reduction) {
      case ReductionKind::kGather:  // to all other ranks
        bytes += ranks * payload;
        break;
      case ReductionKind::kShared: {
        const auto selection = scheme.codec->selection(scheme.params, shape);
        bytes += 2 * (selection->norm_bytes() + selection->value_bytes());
        break;
      }
      case ReductionKind::kCounts:
        bytes += 2 * CountedCodes::exponent_bytes(numel) + CountedCodes::code_bytes(numel) +
                 CountedCodes::count_bytes(numel, scheme.ranks);
        break;
      case ReductionKind::kRing:  // dense, there and back: an upper bound; reduction_ring_test.cc has the formula
        bytes += 2 * static_cast<std::size_t>(numel) * sizeof(float);
        break;
      default:  // to the owner, which sends as much to all; or sums
        bytes += 2 * payload;
    }
  });
  return static_cast<std::int64_t>(bytes) * (scheme.ranks - 1);
}

// Returns the cells of a ring: stripes, or the ranks' shares of a whole tensor.
std::int64_t cells_of(const Scheme& scheme, const Layout& layout) {
  std::int64_t cells = 0;
  for_each_stripe(scheme, layout, [&](const compression::Shape& shape, std::int64_t numel) {
    const bool whole = scheme.stripe_of(static_cast<std::size_t>(shape.numel)) >= shape.numel;
    cells += whole ? std::min<std::int64_t>(scheme.ranks, numel) : 1;
  });
  return cells;
}

std::int64_t parts_of(const Layout& layout) {
  return std::transform_reduce(layout.begin(), layout.end(), std::int64_t{0}, std::plus<>(),
                               [](const Partition& partition) { return static_cast<std::int64_t>(partition.size()); });
}

class ReductionConformance : public ::testing::TestWithParam<Case> {
 protected:
  const Scheme& scheme() const { return GetParam().scheme; }
};

TEST_P(ReductionConformance, HasParametersHere) {
  ASSERT_FALSE(scheme().params.empty()) << "add the codec to example_params()";
  for (const std::size_t numel : kCaseSizes) {
    EXPECT_TRUE(scheme().codec->check(scheme().params, shape_of(numel)).ok());
  }
}

TEST_P(ReductionConformance, MeansTheSameWhateverTheLayout) {
  expect_reference(scheme(), "local", Cut::kWhole, ReduceOp::kSum);
  expect_reference(scheme(), "local", Cut::kCut, ReduceOp::kAverage);
  expect_reference(scheme(), "local", Cut::kFused, ReduceOp::kAverage);
}

TEST_P(ReductionConformance, ResultsAndResidualsAddUpToTheInputs) {
  if (GetParam().exact()) {
    expect_nothing_lost(scheme(), "local");
  }
}

TEST_P(ReductionConformance, SendsWhatItsFormulaSays) {
  Group group(scheme(), kCaseSizes, "local");
  for (const Cut cut : {Cut::kCut, Cut::kFused}) {
    const Layout layout = make_layout(scheme(), kCaseSizes, cut);
    Gradients gradients = random_gradients(scheme().ranks, 1);
    expect_ok(group.run(layout, gradients));
    const std::int64_t headers = parts_of(layout);
    const std::int64_t others = scheme().ranks - 1;
    const std::int64_t all = std::accumulate(group.sent_bytes().begin(), group.sent_bytes().end(), std::int64_t{0});
    const std::int64_t expected = sent_in_all(scheme(), layout);
    switch (scheme().reduction) {
      case ReductionKind::kGather:
        EXPECT_EQ(all, expected + scheme().ranks * others * headers);
        break;
      case ReductionKind::kScatter:
        EXPECT_EQ(all, expected + 2 * scheme().ranks * others * headers);
        break;
      case ReductionKind::kRing:
        EXPECT_LE(all, expected + scheme().ranks * others * (headers + 4 * cells_of(scheme(), layout)));
        break;
      default:
        // Each rank rounds sums down; the first sum is preceded by two numbers for each slice, or a byte.
        EXPECT_NEAR(static_cast<double>(all),
                    static_cast<double>(expected +
                                        2 * others * (scheme().reduction == ReductionKind::kCounts ? 1 : 8) * headers),
                    static_cast<double>(2 * scheme().ranks) * static_cast<double>(layout.size()));
    }
  }
}

TEST_P(ReductionConformance, NonFiniteSlicesAreNanOnAllRanksAndKeepTheirResidual) {
  const float poison =
      scheme().ranks % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  Group group(scheme(), kCaseSizes, "local");
  const Layout layout = make_layout(scheme(), kCaseSizes, Cut::kFused);
  Gradients gradients = random_gradients(scheme().ranks, 1);
  expect_ok(group.run(layout, gradients));
  Gradients residual(gradients.size());
  for (Rank rank = 0; rank < scheme().ranks; ++rank) {
    for (std::size_t t = 0; t < kCaseSizes.size(); ++t) {
      residual[static_cast<std::size_t>(rank)].push_back(group.residual(rank, t));
    }
  }
  gradients = random_gradients(scheme().ranks, 2);
  gradients.back()[1][kCaseSizes[1] - 1] = poison;
  expect_ok(group.run(layout, gradients));
  for (Rank rank = 0; rank < scheme().ranks; ++rank) {
    const Tensors& results = gradients[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(std::ranges::all_of(results[1], [](float value) { return std::isnan(value); }));
    EXPECT_TRUE(same_bits(group.residual(rank, 1), residual[static_cast<std::size_t>(rank)][1]));
    for (const std::size_t t : {std::size_t{0}, std::size_t{2}, std::size_t{5}}) {
      EXPECT_TRUE(std::ranges::all_of(results[t], [](float value) { return std::isfinite(value); }));
      EXPECT_TRUE(same_bits(results[t], gradients.front()[t]));
    }
  }
}

TEST_P(ReductionConformance, TensorsThatNoRankHasAreZeroAndKeepTheirResidual) {
  Group group(scheme(), kCaseSizes, "local");
  const Layout layout = make_layout(scheme(), kCaseSizes, Cut::kCut);
  Gradients gradients = random_gradients(scheme().ranks, 1);
  expect_ok(group.run(layout, gradients));
  const Floats before = group.residual(0, 1);
  Gradients zeros = gradients;
  for (Tensors& tensors : zeros) {
    for (Floats& values : tensors) {
      std::ranges::fill(values, 0.0F);
    }
  }
  Gradients unused = zeros;
  const std::vector<bool> all(static_cast<std::size_t>(scheme().ranks), true);
  expect_ok(group.run(layout, unused, {.absent = all}));
  EXPECT_TRUE(same_bits(unused.back()[1], zeros.back()[1]));
  EXPECT_TRUE(same_bits(group.residual(0, 1), before));
  // One rank has a gradient; the others send their residuals.
  std::vector<bool> but_one = all;
  but_one.back() = false;
  Reference reference(scheme(), kCaseSizes);
  reference.run(random_gradients(scheme().ranks, 1), ReduceOp::kSum);
  reference.run_unused(zeros);
  const Tensors expected = reference.run(zeros, ReduceOp::kSum);
  expect_ok(group.run(layout, zeros, {.absent = but_one}));
  EXPECT_TRUE(same_bits(zeros.front()[1], expected[1]));
}

INSTANTIATE_TEST_SUITE_P(All, ReductionConformance, ::testing::ValuesIn(all_cases()), name_of);

}  // namespace
}  // namespace sirtaki::engine::testing
