// Recipes over sockets, each rank with a thread of its own.
#include "tests/conformance/reduction_cases.h"

namespace sirtaki::engine::testing {
namespace {

class RecipeThreads : public ::testing::TestWithParam<Case> {};

TEST_P(RecipeThreads, MeanTheSameOverSockets) {
  expect_reference(GetParam().scheme, "direct", Cut::kCut, ReduceOp::kAverage);
}

INSTANTIATE_TEST_SUITE_P(All, RecipeThreads, ::testing::ValuesIn(all_cases()), name_of);

class RecipeHostsThreads : public ::testing::TestWithParam<Case> {};

TEST_P(RecipeHostsThreads, MeanTheSameThroughSharedMemoryAndSockets) {
  expect_reference_of_hosts(GetParam().scheme, "hosts_shared", Cut::kCut, ReduceOp::kSum);
}

INSTANTIATE_TEST_SUITE_P(All, RecipeHostsThreads, ::testing::ValuesIn(host_cases()), name_of);

}  // namespace
}  // namespace sirtaki::engine::testing
