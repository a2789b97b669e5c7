// The cases of reduction tests: every codec with every reduction that supports it, on one to four ranks, with and
// without feedback.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/conformance/reduction/reduction_support.h"

namespace sirtaki::engine::testing {

// Elements of the tensors; the largest has more than one stripe even when one rank owns all.
inline const std::vector<std::size_t> kCaseSizes = {1, 17000, 7, 3000, 1000, 4096, 8};

struct Case {
  Scheme scheme;
  bool feedback;

  // Returns whether residuals are exact to the last bit; those of factors are rounded.
  bool exact() const { return feedback && scheme.codec->id() != CodecId::kPowerSgd; }
};

std::vector<Case> all_cases();
// Returns the cases in which several hosts have several ranks.
std::vector<Case> host_cases();
std::string name_of(const ::testing::TestParamInfo<Case>& info);

Gradients random_gradients(int ranks, std::uint64_t seed);
bool same_bits(const Floats& a, const Floats& b);
void expect_ok(const std::vector<Status>& outcome);

// Expects that results and residuals of some steps equal those of the reference, bit for bit, on all ranks.
void expect_reference(const Scheme& scheme, const std::string& world, Cut cut, ReduceOp op);

// Expects the same of a `world` with several hosts. If hosts sum up first, results equal those of a reference among
// hosts, and the residuals of a host's ranks add up to those of one rank there. Reductions whose sums go host by host
// add in another order: all ranks have the same results, and results and residuals nearly equal those of the reference.
void expect_reference_of_hosts(const Scheme& scheme, const std::string& world, Cut cut, ReduceOp op);

// Expects that results and residuals add up to the inputs, which are whole numbers with exact sums. For exact cases.
void expect_nothing_lost(const Scheme& scheme, const std::string& world);

}  // namespace sirtaki::engine::testing
