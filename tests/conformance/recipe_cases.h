// The cases of recipe tests: every codec by every recipe that runs it, of one to four ranks, with and without feedback.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/conformance/recipe_support.h"

namespace sirtaki::engine::testing {

// Of tensors; the largest is more than one stripe also of one rank.
inline const std::vector<std::size_t> kCaseSizes = {1, 17000, 7, 3000, 1000, 4096, 8};

struct Case {
  Scheme scheme;
  bool feedback;
};

std::vector<Case> all_cases();
std::string name_of(const ::testing::TestParamInfo<Case>& info);

Gradients random_gradients(int ranks, std::uint64_t seed);
bool same_bits(const Floats& a, const Floats& b);
void expect_ok(const std::vector<Status>& outcome);

// Results and residuals of some steps are the reference's, bit for bit, on all ranks.
void expect_reference(const Scheme& scheme, const std::string& world, Cut cut, ReduceOp op);

}  // namespace sirtaki::engine::testing
