#include "kernels/cast/cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/half/half.h"
#include "runtime/base/check.h"
#include "tests/unit/kernels/arrays.h"

namespace sirtaki::kernels {
namespace {

std::vector<std::pair<DType, DType>> all_casts() {
  std::vector<std::pair<DType, DType>> all;
  for (const DType from : all_dtypes()) {
    for (const DType to : all_dtypes()) {
      if (can_cast(from, to)) {
        all.emplace_back(from, to);
      }
    }
  }
  return all;
}

void expect_same_as_reference(const Array& in, DType from, DType to, std::size_t shift) {
  const auto n = in.size() / dtype_size(from);
  Array expected(n * dtype_size(to), 0);
  Array out(n * dtype_size(to), shift);
  ref::cast(from, in.data(), to, expected.data(), static_cast<std::int64_t>(n));
  cast(from, in.data(), to, out.data(), static_cast<std::int64_t>(n));
  ASSERT_EQ(out.copy(), expected.copy());
  ASSERT_TRUE(out.guards_intact());
}

TEST(Cast, IsTheReferenceOnEveryTarget) {
  EXPECT_EQ(all_casts().size(), 8U);
  on_every_target([](const std::string& target) {
    for (const auto& [from, to] : all_casts()) {
      for (std::uint64_t seed = 0; seed < 40; ++seed) {
        SCOPED_TRACE(target + " " + std::string(dtype_name(from)) + " to " + std::string(dtype_name(to)) + " seed " +
                     std::to_string(seed));
        Random random(seed);
        Array in((seed < 10 ? seed : random() % 500) * dtype_size(from), random());
        fill(from, in, random);
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(in, from, to, random()));
      }
    }
  });
}

Array all_halves() {
  Array in(2 * kHalves, 0);
  for (std::size_t i = 0; i < kHalves; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    std::memcpy(in.data() + 2 * i, &half, 2);
  }
  return in;
}

TEST(Cast, WidensEveryHalfAsTheReferenceOnEveryTarget) {
  const Array in = all_halves();
  on_every_target([&in](const std::string& target) {
    for (const auto& [from, to] : all_casts()) {
      if (dtype_size(from) == 2) {
        SCOPED_TRACE(target + " " + std::string(dtype_name(from)) + " to " + std::string(dtype_name(to)));
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(in, from, to, 5));
      }
    }
  });
}

// The float32 numbers next to every half, and next to the middle between it and the following one.
TEST(Cast, RoundsAroundEveryHalfAsTheReferenceOnEveryTarget) {
  for (const DType to : {DType::kF16, DType::kBF16}) {
    Array in(6 * 4 * kHalves, 0);
    for (std::uint32_t i = 0; i < kHalves; ++i) {
      const auto half = static_cast<std::uint16_t>(i);
      const float value = to == DType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
      const auto bits = std::bit_cast<std::uint32_t>(value);
      const std::uint32_t middle = bits + (to == DType::kF16 ? 0x1000U : 0x8000U);
      const std::uint32_t around[6] = {bits - 1, bits, bits + 1, middle - 1, middle, middle + 1};
      std::memcpy(in.data() + sizeof(around) * i, around, sizeof(around));
    }
    on_every_target([&in, to](const std::string& target) {
      SCOPED_TRACE(target + " to " + std::string(dtype_name(to)));
      ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(in, DType::kF32, to, 2));
    });
  }
}

TEST(Cast, ReferenceKeepsEveryHalfOnTheWayThereAndBack) {
  for (std::uint32_t i = 0; i < kHalves; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const bool f16_nan = (half & 0x7FFFU) > 0x7C00U;
    const bool bf16_nan = (half & 0x7FFFU) > 0x7F80U;
    ASSERT_EQ(f32_to_f16(f16_to_f32(half)), f16_nan ? half | 0x200U : half);
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(half)), bf16_nan ? half | 0x40U : half);
    ASSERT_EQ(std::isnan(f16_to_f32(half)), f16_nan);
    ASSERT_EQ(std::isnan(bf16_to_f32(half)), bf16_nan);
  }
}

// Independent of the bit tricks: the nearest half by search, the even one on a tie.
TEST(Cast, ReferenceRoundsToTheNearestHalf) {
  Random random(11);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::ldexp(static_cast<float>(random() % (1 << 24)), static_cast<int>(random() % 42) - 50);
    std::uint32_t low = 0;
    std::uint32_t high = 0x7C00;
    while (high - low > 1) {
      const std::uint32_t middle = (low + high) / 2;
      (f16_to_f32(static_cast<std::uint16_t>(middle)) <= value ? low : high) = middle;
    }
    const double below = f16_to_f32(static_cast<std::uint16_t>(low));
    const double above = high == 0x7C00 ? 65536.0 : f16_to_f32(static_cast<std::uint16_t>(high));
    const double to_below = value - below;
    const double to_above = above - value;
    const std::uint32_t nearest = to_below < to_above || (to_below == to_above && low % 2 == 0) ? low : high;
    ASSERT_EQ(f32_to_f16(value), nearest) << value;
    ASSERT_EQ(f32_to_f16(-value), nearest | 0x8000U) << value;
  }
}

TEST(Cast, ReferenceKnowsTheSpecialValues) {
  EXPECT_EQ(f32_to_f16(65519.996F), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7C00);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(f32_to_f16(-0.0F), 0x8000);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24F);
  EXPECT_EQ(f16_to_f32(0x3555), 0.333251953125F);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7F800001U)), 0x7FC0);
  EXPECT_EQ(f32_to_bf16(3.140625F), 0x4049);
}

TEST(Cast, RefusesOtherDtypes) {
  EXPECT_FALSE(can_cast(DType::kF32, DType::kF64));
  EXPECT_FALSE(can_cast(DType::kF16, DType::kBF16));
  EXPECT_FALSE(can_cast(DType::kI32, DType::kF16));
  std::byte none{};
  EXPECT_THROW(cast(DType::kF32, &none, DType::kI8, &none, 0), BugError);
  EXPECT_THROW(cast(DType::kF32, &none, DType::kF16, &none, -1), BugError);
}

}  // namespace
}  // namespace sirtaki::kernels
