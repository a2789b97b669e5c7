#include "tests/conformance/recipe_cases.h"

#include <cstring>
#include <random>

#include "runtime/base/compression_methods.h"

namespace sirtaki::engine::testing {
namespace {

constexpr Recipe kRecipes[] = {Recipe::kGather, Recipe::kScatter, Recipe::kShared,
                               Recipe::kCounts, Recipe::kRing,    Recipe::kLowRank};

}  // namespace

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

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Scheme& scheme = info.param.scheme;
  return std::string(scheme.codec->name()) + "_" + std::string(recipe_name(scheme.recipe)) + "_" +
         std::to_string(scheme.ranks) + (info.param.feedback ? "_feedback" : "_without");
}

Gradients random_gradients(int ranks, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Gradients gradients(static_cast<std::size_t>(ranks));
  for (Tensors& tensors : gradients) {
    for (const std::size_t numel : kCaseSizes) {
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

void expect_reference(const Scheme& scheme, const std::string& world, Cut cut, ReduceOp op) {
  Group group(scheme, kCaseSizes, world);
  Reference reference(scheme, kCaseSizes);
  const Layout layout = make_layout(scheme, kCaseSizes, cut);
  for (std::uint64_t step = 1; step <= 2; ++step) {
    Gradients gradients = random_gradients(scheme.ranks, step);
    const Tensors expected = reference.run(gradients, op);
    expect_ok(group.run(layout, gradients, {.op = op}));
    for (Rank rank = 0; rank < scheme.ranks; ++rank) {
      for (std::size_t t = 0; t < kCaseSizes.size(); ++t) {
        SCOPED_TRACE("seed " + std::to_string(step) + ", rank " + std::to_string(rank) + ", tensor " +
                     std::to_string(t));
        ASSERT_TRUE(same_bits(gradients[static_cast<std::size_t>(rank)][t], expected[t]));
        ASSERT_TRUE(same_bits(group.owed(rank, t), reference.owed(rank, t)));
      }
    }
  }
}

}  // namespace sirtaki::engine::testing
