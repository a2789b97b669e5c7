// Every codec with payloads by every recipe that runs it: what ranks get and owe is what the codec means.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/recipe_support.h"

namespace sirtaki::engine::testing {
namespace {

constexpr Recipe kRecipes[] = {Recipe::kGather, Recipe::kScatter, Recipe::kLowRank};
const std::vector<std::size_t> kSizes = {1, 20000, 7, 5000, 1000, 12288, 8};

std::string recipe_name(Recipe recipe) {
  return recipe == Recipe::kGather ? "gather" : recipe == Recipe::kScatter ? "scatter" : "lowrank";
}

struct Case {
  Scheme scheme;
  bool feedback;
};

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const compression::PayloadCodec* codec : compression::payload_codecs()) {
    for (const Recipe recipe : kRecipes) {
      for (int ranks = 1; ranks <= 4 && codec->supports(recipe); ++ranks) {
        for (const bool feedback : {true, false}) {
          all.push_back({{codec, recipe, example_params(*codec, feedback), ranks}, feedback});
        }
      }
    }
  }
  return all;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Scheme& scheme = info.param.scheme;
  return std::string(scheme.codec->name()) + "_" + recipe_name(scheme.recipe) + "_" + std::to_string(scheme.ranks) +
         (info.param.feedback ? "_feedback" : "_without");
}

Gradients random_gradients(int ranks, const std::vector<std::size_t>& sizes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Gradients gradients(static_cast<std::size_t>(ranks));
  for (Tensors& tensors : gradients) {
    for (const std::size_t numel : sizes) {
      Floats& values = tensors.emplace_back(numel);
      for (float& value : values) {
        value = normal(random) * 0.01F;
      }
    }
  }
  return gradients;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_ok(const std::vector<Status>& outcome) {
  for (const Status& status : outcome) {
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
}

class RecipeConformance : public ::testing::TestWithParam<Case> {
 protected:
  const Scheme& scheme() const { return GetParam().scheme; }

  void expect_reference(const std::string& world, Cut cut, ReduceOp op) const {
    Group group(scheme(), kSizes, world);
    Reference reference(scheme(), kSizes);
    const Layout layout = make_layout(scheme(), kSizes, cut);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      Gradients gradients = random_gradients(scheme().ranks, kSizes, step);
      const Tensors expected = reference.run(gradients, op);
      expect_ok(group.run(layout, gradients, {.op = op}));
      for (Rank rank = 0; rank < scheme().ranks; ++rank) {
        for (std::size_t t = 0; t < kSizes.size(); ++t) {
          SCOPED_TRACE("seed " + std::to_string(step) + ", rank " + std::to_string(rank) + ", tensor " +
                       std::to_string(t));
          ASSERT_TRUE(same_bits(gradients[static_cast<std::size_t>(rank)][t], expected[t]));
          ASSERT_TRUE(same_bits(group.owed(rank, t), reference.owed(rank, t)));
        }
      }
    }
  }
};

TEST_P(RecipeConformance, HasParametersHere) {
  ASSERT_FALSE(scheme().params.empty()) << "add the codec to example_params()";
  for (const std::size_t numel : kSizes) {
    EXPECT_TRUE(scheme().codec->check(scheme().params, shape_of(numel)));
  }
}

TEST_P(RecipeConformance, MeansTheSameWhateverTheLayout) {
  expect_reference("local", Cut::kWhole, ReduceOp::kSum);
  expect_reference("local", Cut::kCut, ReduceOp::kAverage);
  expect_reference("local", Cut::kFused, ReduceOp::kAverage);
}

TEST_P(RecipeConformance, MeansTheSameOverSockets) {
  expect_reference("direct", Cut::kCut, ReduceOp::kAverage);
}

// Small multiples of a power of two, so that every sum is exact: nothing given is lost.
TEST_P(RecipeConformance, GivesOrOwesAllThatWasPutIn) {
  // What factors leave is rounded.
  if (!GetParam().feedback || scheme().codec->id() == CodecId::kPowerSgd) {
    return;
  }
  Group group(scheme(), kSizes, "local");
  const Layout layout = make_layout(scheme(), kSizes, Cut::kCut);
  Tensors balance;  // put in less what came out
  for (const std::size_t numel : kSizes) {
    balance.emplace_back(numel);
  }
  std::mt19937_64 random(5);
  for (int step = 0; step < 8; ++step) {
    Gradients gradients = random_gradients(scheme().ranks, kSizes, 1);
    for (std::size_t r = 0; r < gradients.size(); ++r) {
      for (std::size_t t = 0; t < kSizes.size(); ++t) {
        for (std::size_t i = 0; i < kSizes[t]; ++i) {
          gradients[r][t][i] = static_cast<float>(static_cast<int>(random() % 2001) - 1000);
          balance[t][i] += gradients[r][t][i];
        }
      }
    }
    expect_ok(group.run(layout, gradients));
    for (std::size_t t = 0; t < kSizes.size(); ++t) {
      for (std::size_t i = 0; i < kSizes[t]; ++i) {
        balance[t][i] -= gradients.front()[t][i];
      }
    }
  }
  for (std::size_t t = 0; t < kSizes.size(); ++t) {
    Floats owed(kSizes[t]);
    for (Rank rank = 0; rank < scheme().ranks; ++rank) {
      const Floats part = group.owed(rank, t);
      std::transform(owed.begin(), owed.end(), part.begin(), owed.begin(), std::plus<>());
    }
    // Products of factors are no integers: what they leave is rounded.
    const float allowed = scheme().codec->id() == CodecId::kPowerSgd ? 0.05F : 0.0F;
    for (std::size_t i = 0; i < owed.size(); ++i) {
      ASSERT_NEAR(owed[i], balance[t][i], allowed) << "tensor " << t << " element " << i;
    }
  }
}

TEST_P(RecipeConformance, SendsWhatItsFormulaSays) {
  Group group(scheme(), kSizes, "local");
  for (const Cut cut : {Cut::kWhole, Cut::kCut, Cut::kFused}) {
    const Layout layout = make_layout(scheme(), kSizes, cut);
    Gradients gradients = random_gradients(scheme().ranks, kSizes, 1);
    expect_ok(group.run(layout, gradients));
    std::int64_t payload = 0;
    std::int64_t stripes = 0;
    std::int64_t headers = 0;
    for (const Partition& partition : layout) {
      for (const Part& part : partition) {
        const compression::Shape shape = shape_of(kSizes[part.tensor]);
        const std::int64_t stripe = scheme().codec->stripe(scheme().params, shape, scheme().ranks);
        for (std::int64_t at = part.first; at < part.end; at += stripe) {
          const std::int64_t numel = std::min(stripe, part.end - at);
          payload += static_cast<std::int64_t>(scheme().codec->payload_bytes(scheme().params, shape, numel));
          ++stripes;
        }
        ++headers;
      }
    }
    const std::int64_t others = scheme().ranks - 1;
    const std::int64_t all = std::accumulate(group.sent_bytes().begin(), group.sent_bytes().end(), std::int64_t{0});
    if (scheme().recipe == Recipe::kLowRank) {
      // Two allreduces of the factors, in front of which two numbers for each slice, each rounded down.
      EXPECT_NEAR(static_cast<double>(all), static_cast<double>(2 * others * (payload + 8 * headers)),
                  static_cast<double>(2 * scheme().ranks) * static_cast<double>(layout.size()));
      continue;
    }
    // Over all ranks: by gather every payload goes to all others; by scatter to its owner, who sends one on to all.
    const std::int64_t rounds = scheme().recipe == Recipe::kGather ? 1 : 2;
    const std::int64_t payloads = scheme().recipe == Recipe::kGather ? scheme().ranks * others : 2 * others;
    EXPECT_EQ(all, payloads * payload + rounds * scheme().ranks * others * headers);
  }
}

TEST_P(RecipeConformance, NonFiniteSlicesAreNanOnAllRanksAndOweWhatTheyDid) {
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Group group(scheme(), kSizes, "local");
    const Layout layout = make_layout(scheme(), kSizes, Cut::kFused);
    Gradients gradients = random_gradients(scheme().ranks, kSizes, 1);
    expect_ok(group.run(layout, gradients));
    Gradients owed(gradients.size());
    for (Rank rank = 0; rank < scheme().ranks; ++rank) {
      for (std::size_t t = 0; t < kSizes.size(); ++t) {
        owed[static_cast<std::size_t>(rank)].push_back(group.owed(rank, t));
      }
    }
    gradients = random_gradients(scheme().ranks, kSizes, 2);
    gradients.back()[1][kSizes[1] - 1] = poison;
    expect_ok(group.run(layout, gradients));
    for (Rank rank = 0; rank < scheme().ranks; ++rank) {
      const Tensors& results = gradients[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(std::ranges::all_of(results[1], [](float value) { return std::isnan(value); }));
      EXPECT_TRUE(same_bits(group.owed(rank, 1), owed[static_cast<std::size_t>(rank)][1]));
      for (const std::size_t t : {std::size_t{0}, std::size_t{2}, std::size_t{5}}) {
        EXPECT_TRUE(std::ranges::all_of(results[t], [](float value) { return std::isfinite(value); }));
        EXPECT_TRUE(same_bits(results[t], gradients.front()[t]));
      }
    }
  }
}

TEST_P(RecipeConformance, WhatNoRankHasIsZeroAndOwesWhatItDid) {
  Group group(scheme(), kSizes, "local");
  const Layout layout = make_layout(scheme(), kSizes, Cut::kCut);
  Gradients gradients = random_gradients(scheme().ranks, kSizes, 1);
  expect_ok(group.run(layout, gradients));
  const Floats before = group.owed(0, 1);
  Gradients zeros = gradients;
  for (Tensors& tensors : zeros) {
    for (Floats& values : tensors) {
      std::ranges::fill(values, 0.0F);
    }
  }
  Gradients nobody = zeros;
  const std::vector<bool> all(static_cast<std::size_t>(scheme().ranks), true);
  expect_ok(group.run(layout, nobody, {.absent = all}));
  EXPECT_TRUE(same_bits(nobody.back()[1], zeros.back()[1]));
  EXPECT_TRUE(same_bits(group.owed(0, 1), before));
  // Where one rank has a gradient, the others send what they owe.
  std::vector<bool> but_one = all;
  but_one.back() = false;
  Reference reference(scheme(), kSizes);
  reference.run(random_gradients(scheme().ranks, kSizes, 1), ReduceOp::kSum);
  reference.run_unused(zeros);
  const Tensors expected = reference.run(zeros, ReduceOp::kSum);
  expect_ok(group.run(layout, zeros, {.absent = but_one}));
  EXPECT_TRUE(same_bits(zeros.front()[1], expected[1]));
}

INSTANTIATE_TEST_SUITE_P(All, RecipeConformance, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace sirtaki::engine::testing
