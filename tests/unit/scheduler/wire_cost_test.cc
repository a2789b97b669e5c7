#include "scheduler/wire_cost.h"

#include <gtest/gtest.h>

namespace sirtaki::scheduler {
namespace {

// What a rank sends, counted from the collective's messages.
std::int64_t sent(Recipe recipe, std::int64_t payload, std::int64_t ranks) {
  const std::int64_t others = ranks - 1;
  switch (recipe) {
    case Recipe::kGather:
      return others * payload;
    case Recipe::kScatter:
      return 2 * others * (payload / ranks);
    case Recipe::kCounts:  // four ranks: 2 bits to the owner, one of 9 values back
      return others * (payload / ranks) + others * (payload / ranks) * 2;
    default:
      return 0;
  }
}

TEST(WireCost, IsTheAllreduceInWhichARankSendsAsMuch) {
  constexpr std::int64_t kPayload = 1200;
  for (const int ranks : {2, 3, 4}) {
    for (const Recipe recipe : {Recipe::kGather, Recipe::kScatter, Recipe::kCounts}) {
      if (recipe == Recipe::kCounts && ranks != 4) {
        continue;
      }
      const std::int64_t equivalent = dense_equivalent(recipe, {kPayload, 0}, ranks);
      EXPECT_EQ(2 * (ranks - 1) * equivalent / ranks, sent(recipe, kPayload, ranks)) << ranks;
    }
  }
}

TEST(WireCost, GatherOfTwoIsAsShortAsScatter) {
  EXPECT_EQ(dense_equivalent(Recipe::kGather, {1000, 0}, 2), dense_equivalent(Recipe::kScatter, {1000, 0}, 2));
  EXPECT_GT(dense_equivalent(Recipe::kGather, {1000, 0}, 3), dense_equivalent(Recipe::kScatter, {1000, 0}, 3));
}

TEST(WireCost, ARingIsNeverLongerThanTheElements) {
  EXPECT_EQ(dense_equivalent(Recipe::kRing, {1000, 100'000}, 4), 3000);
  EXPECT_EQ(dense_equivalent(Recipe::kRing, {1000, 2000}, 4), 2000);
}

TEST(WireCost, StaysWithinSixtyFourBits) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  EXPECT_EQ(dense_equivalent(Recipe::kGather, {kHuge / 1024, 0}, 2048), kHuge);
  EXPECT_EQ(dense_equivalent(Recipe::kGather, {1000, 0}, 1), 1000) << "alone";
}

}  // namespace
}  // namespace sirtaki::scheduler
