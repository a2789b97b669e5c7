// Reductions in process with several ranks on several hosts: hosts sum up and then act as ranks do elsewhere, or sums
// go host by host.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/conformance/reduction/reduction_cases.h"
#include "tests/world/seeds.h"

namespace sirtaki::engine::testing {
namespace {

class ReductionHosts : public ::testing::TestWithParam<Case> {
 protected:
  const Scheme& scheme() const { return GetParam().scheme; }
};

TEST_P(ReductionHosts, MeanTheSameBetweenHostsAsBetweenRanks) {
  expect_reference_of_hosts(scheme(), "hosts", Cut::kWhole, ReduceOp::kSum);
  expect_reference_of_hosts(scheme(), "hosts", Cut::kCut, ReduceOp::kAverage);
  expect_reference_of_hosts(scheme(), "hosts", Cut::kFused, ReduceOp::kAverage);
}

TEST_P(ReductionHosts, ResultsAndResidualsAddUpToTheInputs) {
  if (GetParam().exact()) {
    expect_nothing_lost(scheme(), "hosts");
  }
}

TEST_P(ReductionHosts, NonFiniteSlicesAreNanOnAllRanksAndKeepTheirResidual) {
  Group group(scheme(), kCaseSizes, "hosts");
  const Layout layout = make_layout(scheme(), kCaseSizes, Cut::kFused);
  Gradients gradients = random_gradients(scheme().ranks, 1);
  expect_ok(group.run(layout, gradients));
  std::vector<Floats> residual;
  for (Rank rank = 0; rank < scheme().ranks; ++rank) {
    residual.push_back(group.residual(rank, 1));
  }
  gradients = random_gradients(scheme().ranks, 2);
  gradients.back()[1][kCaseSizes[1] - 1] = std::numeric_limits<float>::infinity();
  expect_ok(group.run(layout, gradients));
  for (Rank rank = 0; rank < scheme().ranks; ++rank) {
    const Tensors& results = gradients[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(std::ranges::all_of(results[1], [](float value) { return std::isnan(value); }));
    EXPECT_TRUE(same_bits(group.residual(rank, 1), residual[static_cast<std::size_t>(rank)]));
    EXPECT_TRUE(std::ranges::all_of(results[2], [](float value) { return std::isfinite(value); }));
    EXPECT_TRUE(same_bits(results[2], gradients.front()[2]));
  }
}

TEST_P(ReductionHosts, TensorsThatNoRankHasAreZeroAndKeepTheirResidual) {
  Group group(scheme(), kCaseSizes, "hosts");
  const Layout layout = make_layout(scheme(), kCaseSizes, Cut::kCut);
  Gradients gradients = random_gradients(scheme().ranks, 1);
  expect_ok(group.run(layout, gradients));
  const Floats before = group.residual(0, 1);
  for (Tensors& tensors : gradients) {
    std::ranges::fill(tensors[1], 0.0F);
  }
  const Floats zeros = gradients.front()[1];
  std::vector<bool> absent(static_cast<std::size_t>(scheme().ranks), true);
  expect_ok(group.run(layout, gradients, {.absent = absent}));
  EXPECT_TRUE(same_bits(gradients.back()[1], zeros));
  EXPECT_TRUE(same_bits(group.residual(0, 1), before));
  // With a gradient on another rank of the host there is data to send.
  absent.back() = false;
  gradients = random_gradients(scheme().ranks, 2);
  for (std::size_t r = 0; r + 1 < gradients.size(); ++r) {
    for (Floats& values : gradients[r]) {
      std::ranges::fill(values, 0.0F);
    }
  }
  expect_ok(group.run(layout, gradients, {.absent = absent}));
  EXPECT_FALSE(same_bits(gradients.front()[1], zeros));
  EXPECT_TRUE(same_bits(gradients.front()[1], gradients.back()[1]));
}

// Cancels in every stage, by a rank of the larger host and by the rank that is alone on its host.
TEST_P(ReductionHosts, CancelledPartitionsEndOnceAndTheNextStepWorks) {
  const Layout layout = make_layout(scheme(), kCaseSizes, Cut::kCut);
  const Status cause(Code::kAborted, "out of memory");
  std::size_t cancelled = 0;
  for (const Rank by : {0, 1}) {
    for (const int turns : world::kSanitized ? std::vector{0, 20} : std::vector{0, 5, 20, 40, 80, 160}) {
      SCOPED_TRACE("rank " + std::to_string(by) + " after " + std::to_string(turns));
      Group group(scheme(), kCaseSizes, "hosts");
      Gradients gradients = random_gradients(scheme().ranks, 1);
      const auto cancel = [&](Rank rank, Reduction& reduction) {
        if (rank == by) {
          reduction.cancel(cause);
        }
      };
      for (const Status& status : group.run(layout, gradients, {.then = cancel, .turns = turns})) {
        EXPECT_TRUE(status.ok() || status.text() == cause.text()) << status.to_string();
        cancelled += status.ok() ? 0 : 1;
      }
      gradients = random_gradients(scheme().ranks, 2);
      expect_ok(group.run(layout, gradients));
      for (const Tensors& results : gradients) {
        EXPECT_TRUE(same_bits(results[1], gradients.front()[1]));
      }
    }
  }
  EXPECT_GE(cancelled, 4U);
}

INSTANTIATE_TEST_SUITE_P(All, ReductionHosts, ::testing::ValuesIn(host_cases()), name_of);

// Three ranks on one host and one on the other: each host sends as much as one rank would.
TEST(ByHost, APayloadLeavesAHostOnce) {
  constexpr std::size_t kNumel = std::size_t{1} << 18;
  constexpr int kRanks = 4;
  const compression::PayloadCodec& codec = *compression::find_payload_codec("twobit");
  const Scheme scheme{&codec, ReductionKind::kScatter, example_params(codec, true), kRanks};
  const net::Hosts hosts = net::testing::placement("hosts", kRanks);
  std::array<std::size_t, 2> left{};
  net::testing::WorldOptions options;
  options.local.fate = [&](Rank from, const net::Envelope& envelope, std::size_t bytes) {
    const int host = hosts.host_of(from);
    left[static_cast<std::size_t>(host)] += host == hosts.host_of(envelope.peer) ? 0 : bytes;
    return net::MessageFate::kDeliver;
  };
  Group group(scheme, {kNumel}, "hosts", options);
  Gradients gradients(kRanks, Tensors(1, Floats(kNumel, 0.5F)));
  expect_ok(group.run(make_layout(scheme, {kNumel}, Cut::kWhole), gradients));
  const std::size_t payload = codec.payload_bytes(scheme.params, shape_of(kNumel), static_cast<std::int64_t>(kNumel));
  for (const std::size_t bytes : left) {
    EXPECT_GE(bytes, payload);
    EXPECT_LE(bytes, payload + payload / 50);
  }
}

}  // namespace
}  // namespace sirtaki::engine::testing
