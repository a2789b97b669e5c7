// Gathers in which ranks send payloads of different lengths.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/conformance/reduction/reduction_cases.h"

namespace sirtaki::engine::testing {
namespace {

Scheme unequal(int ranks) {
  const compression::PayloadCodec& codec = *compression::find_payload_codec("group_topk");
  std::vector<std::int64_t> keeps;
  for (int rank = 0; rank < ranks; ++rank) {
    keeps.push_back(1 + 5 * rank % 7);
  }
  return {&codec, ReductionKind::kGather, example_params(codec, true), ranks, 0, keeps};
}

class ReductionSenders : public ::testing::TestWithParam<int> {};

TEST_P(ReductionSenders, MeanWhatEachOfThemSends) {
  expect_reference(unequal(GetParam()), "local", Cut::kCut, ReduceOp::kAverage);
  expect_reference(unequal(GetParam()), "local", Cut::kFused, ReduceOp::kSum);
  expect_nothing_lost(unequal(GetParam()), "local");
}

TEST_P(ReductionSenders, SendAsMuchAsTheyKeep) {
  const Scheme scheme = unequal(GetParam());
  const std::vector<std::size_t> sizes = {1 << 14};
  Group group(scheme, sizes, "local");
  Gradients gradients(static_cast<std::size_t>(scheme.ranks), Tensors(1, Floats(sizes[0], 0.5F)));
  expect_ok(group.run(make_layout(scheme, sizes, Cut::kWhole), gradients));
  for (Rank rank = 0; rank < scheme.ranks; ++rank) {
    const std::vector<std::int64_t> params = scheme.params_of(rank);
    const std::size_t payload = scheme.codec->payload_bytes(params, shape_of(sizes[0]), 1 << 14);
    EXPECT_EQ(group.sent_bytes()[static_cast<std::size_t>(rank)],
              (scheme.ranks - 1) * static_cast<std::int64_t>(1 + payload));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReductionSenders, ::testing::Values(2, 3, 4));

// Owners of a share act for their hosts.
TEST(ReductionSendersOfHosts, LoseNothing) {
  expect_nothing_lost(unequal(4), "hosts");
}

}  // namespace
}  // namespace sirtaki::engine::testing
