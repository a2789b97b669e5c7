#include "kernels/scale/scale.h"

#include <gtest/gtest.h>

#include <limits>

#include "runtime/base/check.h"
#include "tests/unit/kernels/arrays.h"

namespace sirtaki::kernels {
namespace {

constexpr double kNanFactor = std::numeric_limits<double>::quiet_NaN();

template <class T>
std::vector<T> scaled(DType dtype, std::vector<T> data, double factor) {
  scale(dtype, reinterpret_cast<std::byte*>(data.data()), static_cast<std::int64_t>(data.size()), factor);
  return data;
}

template <class T>
std::vector<T> divided(DType dtype, std::vector<T> data, std::int64_t count) {
  divide_by(dtype, reinterpret_cast<std::byte*>(data.data()), static_cast<std::int64_t>(data.size()), count);
  return data;
}

TEST(Scale, IsTheReferenceOnEveryTarget) {
  const std::vector<double> factors = {0.5, -3.0, 1.0 / 3.0, 0.0, 1e300, -1e-300, kNanFactor, 65536.0};
  on_every_target([&factors](const std::string& target) {
    for (const DType dtype : all_dtypes()) {
      for (std::uint64_t seed = 0; seed < 40; ++seed) {
        SCOPED_TRACE(target + " " + std::string(dtype_name(dtype)) + " seed " + std::to_string(seed));
        Random random(seed);
        Array data((seed < 10 ? seed : random() % 300) * dtype_size(dtype), random());
        fill(dtype, data, random);
        Array expected = data;
        const auto n = static_cast<std::int64_t>(data.size() / dtype_size(dtype));
        const double factor = factors[random() % factors.size()];
        scale(dtype, data.data(), n, factor);
        ref::scale(dtype, expected.data(), n, factor);
        ASSERT_EQ(data.copy(), expected.copy()) << "factor " << factor;
        ASSERT_TRUE(data.guards_intact());
      }
    }
  });
}

TEST(DivideBy, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const DType dtype : all_dtypes()) {
      for (std::uint64_t seed = 0; seed < 40 && dtype != DType::kBool; ++seed) {
        SCOPED_TRACE(target + " " + std::string(dtype_name(dtype)) + " seed " + std::to_string(seed));
        Random random(seed);
        Array data((seed < 10 ? seed : random() % 300) * dtype_size(dtype), random());
        fill(dtype, data, random);
        Array expected = data;
        const auto n = static_cast<std::int64_t>(data.size() / dtype_size(dtype));
        const auto count = static_cast<std::int64_t>(1 + random() % 9);
        divide_by(dtype, data.data(), n, count);
        ref::divide_by(dtype, expected.data(), n, count);
        ASSERT_EQ(data.copy(), expected.copy()) << "count " << count;
        ASSERT_TRUE(data.guards_intact());
      }
    }
  });
}

TEST(Scale, MultipliesFloatsInTheirOwnPrecision) {
  EXPECT_EQ(scaled<float>(DType::kF32, {3.0F, -1.0F}, 1.0 / 3.0),
            (std::vector<float>{3.0F * static_cast<float>(1.0 / 3.0), -static_cast<float>(1.0 / 3.0)}));
  EXPECT_EQ(scaled<double>(DType::kF64, {3.0}, 0.1), std::vector<double>{3.0 * 0.1});
  EXPECT_EQ(scaled<std::uint16_t>(DType::kF16, {0x3C00}, 0.5), std::vector<std::uint16_t>{0x3800});
  EXPECT_EQ(scaled<std::uint16_t>(DType::kBF16, {0x3F80}, 0.5), std::vector<std::uint16_t>{0x3F00});
}

TEST(Scale, TruncatesIntegersAndStaysInTheirRange) {
  EXPECT_EQ(scaled<std::int8_t>(DType::kI8, {3, -3, 127, -128, 100}, 0.5),
            (std::vector<std::int8_t>{1, -1, 63, -64, 50}));
  EXPECT_EQ(scaled<std::int8_t>(DType::kI8, {127, -128}, 2), (std::vector<std::int8_t>{127, -128}));
  EXPECT_EQ(scaled<std::uint8_t>(DType::kU8, {200, 1}, -1), (std::vector<std::uint8_t>{0, 0}));
  EXPECT_EQ(scaled<std::uint16_t>(DType::kU16, {65535, 2}, 1.5), (std::vector<std::uint16_t>{65535, 3}));
  const std::int64_t big = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(scaled<std::int64_t>(DType::kI64, {big, -big, 5}, 1e6),
            (std::vector<std::int64_t>{big, -big - 1, 5000000}));
  EXPECT_EQ(scaled<std::int32_t>(DType::kI32, {7}, kNanFactor), std::vector<std::int32_t>{0});
}

TEST(Scale, TakesABoolAsZeroOrOne) {
  EXPECT_EQ(scaled<std::uint8_t>(DType::kBool, {0, 1, 7}, 2), (std::vector<std::uint8_t>{0, 1, 1}));
  EXPECT_EQ(scaled<std::uint8_t>(DType::kBool, {0, 1}, -1), (std::vector<std::uint8_t>{0, 1}));
  EXPECT_EQ(scaled<std::uint8_t>(DType::kBool, {0, 1}, 0.5), (std::vector<std::uint8_t>{0, 0}));
}

TEST(DivideBy, DividesTruly) {
  // 5 * (1.0f / 3) is one unit in the last place away from 5 / 3.
  EXPECT_NE(5.0F * (1.0F / 3.0F), 5.0F / 3.0F);
  EXPECT_EQ(divided<float>(DType::kF32, {5.0F}, 3), std::vector<float>{5.0F / 3.0F});
  EXPECT_EQ(divided<double>(DType::kF64, {5.0}, 49), std::vector<double>{5.0 / 49.0});
  EXPECT_EQ(divided<std::uint16_t>(DType::kF16, {0x3C00}, 3), std::vector<std::uint16_t>{0x3555});
}

TEST(DivideBy, TruncatesIntegersTowardsZero) {
  EXPECT_EQ(divided<std::int32_t>(DType::kI32, {7, -7, 6}, 3), (std::vector<std::int32_t>{2, -2, 2}));
  EXPECT_EQ(divided<std::int64_t>(DType::kI64, {(std::int64_t{1} << 53) + 1}, 1),
            std::vector<std::int64_t>{(std::int64_t{1} << 53) + 1});
  EXPECT_EQ(divided<std::uint8_t>(DType::kU8, {255}, 300), std::vector<std::uint8_t>{0});
}

TEST(DivideBy, RefusesWhatHasNoAverage) {
  std::byte data{};
  EXPECT_THROW(divide_by(DType::kBool, &data, 1, 2), BugError);
  EXPECT_THROW(divide_by(DType::kF32, &data, 0, 0), BugError);
}

}  // namespace
}  // namespace sirtaki::kernels
