#include "kernels/group_topk/group_topk.h"

#include <gtest/gtest.h>

#include "kernels/half/half.h"
#include "runtime/base/check.h"
#include "tests/unit/kernels/gradients.h"
#include "tests/unit/kernels/oracles.h"

namespace sirtaki::kernels {
namespace {

Array payload_for(const GroupTopk& how, std::int64_t n, std::size_t shift = 0) {
  return Array(group_topk_bytes(how, n), shift);
}

GroupTopk random_sizes(Random& random) {
  static const std::vector<GroupTopk> kCommon = {{512, 5}, {256, 4}, {1024, 10}, {1024, 64}, {4096, 256}, {512, 200}};
  GroupTopk how = pick(kCommon, random);
  if (random() % 2 == 0) {
    how.group = 1 + static_cast<std::int32_t>(random() % 300);
    how.keep = 1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(how.group));
  }
  how.value = pick<DType>({DType::kF32, DType::kF16, DType::kBF16}, random);
  return how;
}

std::size_t random_group_length(std::uint64_t seed, const GroupTopk& how, Random& random) {
  return seed % 3 == 0 ? random() % 20 : random() % static_cast<std::uint64_t>(2 * how.group + 50);
}

void expect_same_as_reference(const GroupTopk& how, const Array& gradient, const Array* residual, Random& random) {
  const std::int64_t n = count(gradient);
  const Twins twins(gradient, residual, random);
  Array payload = payload_for(how, n, random());
  Array expected = payload_for(how, n);
  const bool finite = group_topk_encode(how, n, twins.arrays(), payload.data());
  ASSERT_EQ(finite, ref::group_topk_encode(how, n, twins.expected(), expected.data()));
  ASSERT_EQ(payload.copy(), expected.copy());
  twins.expect_same_left();
  ASSERT_TRUE(payload.guards_intact());
  ASSERT_TRUE(group_topk_valid(how, n, payload.data()));
}

TEST(GroupTopk, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape shape : kShapes) {
      for (std::uint64_t seed = 0; seed < 40; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(shape)) + " seed " + std::to_string(seed));
        Random random(seed);
        const GroupTopk how = random_sizes(random);
        const std::size_t n = random_group_length(seed, how, random);
        const Array gradient = gradient_array(n, shape, random);
        const Array residual = gradient_array(n, shape, random);
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(how, gradient, &residual, random));
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(how, gradient, nullptr, random));
      }
    }
  });
}

TEST(GroupTopk, IsTheReferenceForTheLargestGroup) {
  on_every_target([](const std::string& target) {
    SCOPED_TRACE(target);
    Random random(3);
    const Array gradient = gradient_array(65536 + 7, Shape::kNormal, random);
    const Array residual = gradient_array(65536 + 7, Shape::kFewNonzero, random);
    ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(GroupTopk{65536, 2000}, gradient, &residual, random));
  });
}

TEST(GroupTopk, ConservesEveryBit) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const GroupTopk how = random_sizes(random);
    const std::size_t n = random_group_length(seed, how, random);
    const Shape shape = seed % 2 == 0 ? Shape::kNormal : Shape::kTiny;
    const Array gradient = gradient_array(n, shape, random);
    Array residual = gradient_array(n, shape, random);
    const std::vector<float> g = floats(gradient);
    const std::vector<float> old = floats(residual);
    Array payload = payload_for(how, count(gradient));
    ASSERT_TRUE(
        group_topk_encode(how, count(gradient), {gradient.data(), residual.data(), residual.data()}, payload.data()));
    Array sent(gradient.size(), 0);
    const std::byte* only = payload.data();
    group_topk_sum(how, count(gradient), {&only, 1}, sent.data());
    const std::vector<float> travelled = floats(sent);
    const std::vector<float> left = floats(residual);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(travelled[i] + left[i], g[i] + old[i]) << "element " << i;
    }
  }
}

TEST(GroupTopk, HasTheDocumentedLayout) {
  const GroupTopk how{4, 2};
  EXPECT_EQ(group_topk_entries(how, 0), 0);
  EXPECT_EQ(group_topk_entries(how, 9), 5);
  EXPECT_EQ(group_topk_bytes(how, 9), 25U);
  EXPECT_EQ(group_topk_bytes({512, 5}, 1 << 20), (1U << 11) * 5U * 6U);
  EXPECT_EQ(group_topk_bytes({512, 5, DType::kF16}, 512), 20U);
  const Array gradient = array_of({1, -3, 2, 2, -5, 0, 0, 4, 0.5F});
  Array payload = payload_for(how, 9);
  ASSERT_TRUE(group_topk_encode(how, 9, {gradient.data()}, payload.data()));
  const std::vector<float> values = {-3, 2, -5, 4, 0.5F};
  const std::vector<std::uint8_t> offsets = {1, 2, 0, 3, 0};
  std::vector<float> sent(5);
  std::memcpy(sent.data(), payload.data(), 20);
  EXPECT_EQ(sent, values);
  EXPECT_EQ(std::memcmp(payload.data() + 20, offsets.data(), 5), 0);
}

TEST(GroupTopk, PrefersTheLowerOffsetOfEqualMagnitudes) {
  std::vector<float> ones(300, -1.0F);
  const Array gradient = array_of(ones);
  const GroupTopk how{300, 7};
  on_every_target([&](const std::string& target) {
    Array payload = payload_for(how, 300);
    group_topk_encode(how, 300, {gradient.data()}, payload.data());
    for (std::size_t e = 0; e < 7; ++e) {
      EXPECT_EQ(payload.data()[28 + 2 * e], static_cast<std::byte>(e)) << target;
    }
  });
}

TEST(GroupTopk, SendsNanBeforeInfinityBeforeTheRestAndSaysSo) {
  const Array gradient = array_of({7, kInf, -kNan, 9});
  const GroupTopk how{4, 2};
  Array residual = array_of({0, 0, 0, 0});
  Array payload = payload_for(how, 4);
  EXPECT_FALSE(group_topk_encode(how, 4, {gradient.data(), residual.data(), residual.data()}, payload.data()));
  std::uint32_t bits[2];
  std::memcpy(bits, payload.data(), 8);
  EXPECT_EQ(bits[0], 0x7F800000U);
  EXPECT_EQ(bits[1], 0x7FC00000U);
  EXPECT_EQ(floats(residual), (std::vector<float>{7, 0, 0, 9}));
}

TEST(GroupTopk, KeepsTheRoundingOfHalvesAndTheirOverflow) {
  const Array gradient = array_of({1.0F + 0x1p-20F, 70000.0F, -0x1p30F});
  const GroupTopk how{1, 1, DType::kF16};
  Array residual = array_of({0, 0, 0});
  Array payload = payload_for(how, 3);
  EXPECT_FALSE(group_topk_encode(how, 3, {gradient.data(), residual.data(), residual.data()}, payload.data()));
  std::uint16_t bits[3];
  std::memcpy(bits, payload.data(), 6);
  EXPECT_EQ(bits[0], 0x3C00);
  EXPECT_EQ(bits[1], 0x7BFF);
  EXPECT_EQ(bits[2], 0xFC00);
  EXPECT_EQ(floats(residual), (std::vector<float>{0x1p-20F, 70000.0F - 65504.0F, 0}));
}

TEST(GroupTopk, SumsPayloadsInTheirOrderAsTheReference) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const GroupTopk how = random_sizes(random);
    const std::size_t n = random_group_length(seed, how, random);
    std::vector<Array> payloads;
    std::vector<const std::byte*> pointers;
    for (std::size_t rank = 0; rank < seed % 6; ++rank) {
      const Array gradient = gradient_array(n, seed % 2 == 0 ? Shape::kNormal : Shape::kAny, random);
      payloads.push_back(payload_for(how, count(gradient), random()));
      group_topk_encode(how, count(gradient), {gradient.data()}, payloads.back().data());
    }
    for (const Array& payload : payloads) {
      pointers.push_back(payload.data());
    }
    Array sum(n * sizeof(float), random());
    Array expected(n * sizeof(float), 0);
    group_topk_sum(how, static_cast<std::int64_t>(n), pointers, sum.data());
    ref::group_topk_sum(how, static_cast<std::int64_t>(n), pointers, expected.data());
    ASSERT_EQ(sum.copy(), expected.copy());
    ASSERT_TRUE(sum.guards_intact());
  }
}

TEST(GroupTopk, ClearsWhatWasSent) {
  const Array gradient = array_of({1, -3, 2, 2, -5});
  const GroupTopk how{4, 2};
  Array payload = payload_for(how, 5);
  group_topk_encode(how, 5, {gradient.data()}, payload.data());
  Array momentum = array_of({10, 11, 12, 13, 14});
  group_topk_clear(how, 5, payload.data(), momentum.data());
  EXPECT_EQ(floats(momentum), (std::vector<float>{10, 0, 0, 13, 0}));
}

TEST(GroupTopk, FindsBadOffsets) {
  const GroupTopk how{512, 3};
  Random random(5);
  const Array gradient = gradient_array(600, Shape::kNormal, random);
  Array payload = payload_for(how, 600);
  group_topk_encode(how, 600, {gradient.data()}, payload.data());
  ASSERT_TRUE(group_topk_valid(how, 600, payload.data()));
  const auto with_offset = [&](std::size_t entry, std::uint16_t offset) {
    Array bad = payload;
    std::memcpy(bad.data() + 24 + 2 * entry, &offset, 2);
    return group_topk_valid(how, 600, bad.data());
  };
  EXPECT_FALSE(with_offset(2, 512));
  EXPECT_FALSE(with_offset(5, 88)) << "behind the last group's 88 elements";
  std::uint16_t first = 0;
  std::memcpy(&first, payload.data() + 24, 2);
  EXPECT_FALSE(with_offset(1, first)) << "twice the same";
}

TEST(GroupTopk, RefusesImpossibleSizes) {
  std::byte none{};
  EXPECT_THROW(group_topk_bytes({0, 1}, 1), BugError);
  EXPECT_THROW(group_topk_bytes({65537, 1}, 1), BugError);
  EXPECT_THROW(group_topk_bytes({4, 5}, 1), BugError);
  EXPECT_THROW(group_topk_bytes({4, 1, DType::kF64}, 1), BugError);
  EXPECT_THROW(group_topk_encode({4, 1}, 1, {&none, &none, nullptr}, &none), BugError);
}

}  // namespace
}  // namespace sirtaki::kernels
