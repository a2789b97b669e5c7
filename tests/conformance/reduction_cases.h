// The cases of reduction tests: every codec by every reduction that runs it, of one to four ranks, with and without
// feedback.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/conformance/reduction_support.h"

namespace sirtaki::engine::testing {

// Of tensors; the largest is more than one stripe also of one rank.
inline const std::vector<std::size_t> kCaseSizes = {1, 17000, 7, 3000, 1000, 4096, 8};

struct Case {
  Scheme scheme;
  bool feedback;

  // What is not sent stays, to the last bit. What factors leave is rounded.
  bool exact() const { return feedback && scheme.codec->id() != CodecId::kPowerSgd; }
};

std::vector<Case> all_cases();
// Those in which several hosts have several ranks.
std::vector<Case> host_cases();
std::string name_of(const ::testing::TestParamInfo<Case>& info);

Gradients random_gradients(int ranks, std::uint64_t seed);
bool same_bits(const Floats& a, const Floats& b);
void expect_ok(const std::vector<Status>& outcome);

// Results and residuals of some steps are the reference's, bit for bit, on all ranks.
void expect_reference(const Scheme& scheme, const std::string& world, Cut cut, ReduceOp op);

// The same where `world` has several hosts. Where these sum up first, results are the reference's among hosts, and a
// host's ranks together owe what a rank does there. Recipes whose sums go host by host add in another order: all ranks
// have the same results, which are nearly the reference's, as is what each owes.
void expect_reference_of_hosts(const Scheme& scheme, const std::string& world, Cut cut, ReduceOp op);

// Whole numbers are given, of which every sum is exact: what ranks get and owe is what was put in. For exact cases.
void expect_nothing_lost(const Scheme& scheme, const std::string& world);

}  // namespace sirtaki::engine::testing
