// Reductions over sockets, each rank with a thread of its own.
#include "tests/conformance/reduction/reduction_cases.h"

namespace sirtaki::engine::testing {
namespace {

class ReductionThreads : public ::testing::TestWithParam<Case> {};

TEST_P(ReductionThreads, MeanTheSameOverSockets) {
  expect_reference(GetParam().scheme, "direct", Cut::kCut, ReduceOp::kAverage);
}

INSTANTIATE_TEST_SUITE_P(All, ReductionThreads, ::testing::ValuesIn(all_cases()), name_of);

class ReductionHostsThreads : public ::testing::TestWithParam<Case> {};

TEST_P(ReductionHostsThreads, MeanTheSameThroughSharedMemoryAndSockets) {
  expect_reference_of_hosts(GetParam().scheme, "hosts_shared", Cut::kCut, ReduceOp::kSum);
}

INSTANTIATE_TEST_SUITE_P(All, ReductionHostsThreads, ::testing::ValuesIn(host_cases()), name_of);

}  // namespace
}  // namespace sirtaki::engine::testing
