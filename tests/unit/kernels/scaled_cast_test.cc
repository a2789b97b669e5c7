#include "kernels/scaled_cast/scaled_cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/scaled_cast/code.h"
#include "runtime/base/check.h"
#include "tests/unit/kernels/gradients.h"

namespace sirtaki::kernels {
namespace {

constexpr std::size_t kScaledLengths = 1500;

constexpr ScaledCode kCodes[] = {ScaledCode::kInt8, ScaledCode::kE4M3, ScaledCode::kE5M2, ScaledCode::kInt4};

ScaledCast random_choice(Random& random) {
  return {kCodes[random() % 4], pick<std::int32_t>({256, 128, 32, 1, 7, 65536}, random)};
}

void expect_same_as_reference(const ScaledCast& how, const Array& gradient, const Array* residual, Random& random) {
  const std::int64_t n = count(gradient);
  const Twins twins(gradient, residual, random);
  Array payload(scaled_bytes(how, n), random());
  Array expected(scaled_bytes(how, n), 0);
  const bool finite = scaled_encode(how, n, twins.arrays(), payload.data());
  ASSERT_EQ(finite, ref::scaled_encode(how, n, twins.expected(), expected.data()));
  ASSERT_EQ(payload.copy(), expected.copy());
  twins.expect_same_left();
  ASSERT_TRUE(payload.guards_intact());
  ASSERT_TRUE(scaled_valid(how, n, payload.data()));
}

TEST(ScaledCast, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape shape : kShapes) {
      for (std::uint64_t seed = 0; seed < 30; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(shape)) + " seed " + std::to_string(seed));
        Random random(seed);
        const ScaledCast how = random_choice(random);
        const std::size_t n = random_length(seed, kScaledLengths, random);
        const Array gradient = gradient_array(n, shape, random);
        const Array residual = gradient_array(n, shape, random);
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(how, gradient, &residual, random));
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(how, gradient, nullptr, random));
      }
    }
  });
}

// All numbers next to every code, and next to the middle between it and the following one, at several scales.
TEST(ScaledCast, RoundsAroundEveryCodeAsTheReferenceOnEveryTarget) {
  Random random(2);
  for (const ScaledCode code : kCodes) {
    std::vector<float> around;
    with_code_type(code, [&]<class Code>() {
      for (int i = 0; i < 255; ++i) {
        const auto here = static_cast<std::uint8_t>(i);
        const auto next = static_cast<std::uint8_t>(i + 1);
        if (Code::valid(here) && Code::valid(next)) {
          const float middle = (Code::decode(here) + Code::decode(next)) / 2;
          for (const float value : {Code::decode(here), middle}) {
            around.insert(around.end(), {value, std::nextafter(value, 1e9F), std::nextafter(value, -1e9F)});
          }
        }
      }
    });
    on_every_target([&](const std::string& target) {
      for (const float scale : {1.0F, 0x1p-100F, 0x1p-126F}) {
        SCOPED_TRACE(target + " code " + std::to_string(static_cast<int>(code)));
        std::vector<float> scaled = around;
        for (float& value : scaled) {
          value *= scale;
        }
        const Array residual = array_of(std::vector<float>(scaled.size(), 0.0F));
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(ScaledCast{code, 65536}, array_of(scaled), &residual, random));
      }
    });
  }
}

// Independent of the arithmetic of codes: the nearest by search, the even one on a tie.
TEST(ScaledCast, ReferenceRoundsToTheNearestCode) {
  Random random(11);
  for (const ScaledCode code : {ScaledCode::kE4M3, ScaledCode::kE5M2}) {
    with_code_type(code, [&]<class Code>() {
      for (int i = 0; i < 20000; ++i) {
        const float largest = Code::decode(Code::encode(1.75F * std::ldexp(1.0F, Code::kLargestExponent)));
        const float value =
            largest * std::ldexp(static_cast<float>(random() % 4097), -12 - static_cast<int>(random() % 30));
        std::uint8_t best = 0;
        for (int c = 1; c < 128 && Code::valid(static_cast<std::uint8_t>(c)); ++c) {
          const double to_best = std::fabs(static_cast<double>(value) - Code::decode(best));
          const double to_this = std::fabs(static_cast<double>(value) - Code::decode(static_cast<std::uint8_t>(c)));
          best = to_this < to_best || (to_this == to_best && c % 2 == 0) ? static_cast<std::uint8_t>(c) : best;
        }
        ASSERT_EQ(Code::encode(value), best) << value;
        ASSERT_EQ(Code::encode(-value), best | 0x80) << value;
      }
    });
  }
}

TEST(ScaledCast, KnowsTheFormats) {
  EXPECT_EQ(E4M3::decode(0x7E), 448.0F);
  EXPECT_EQ(E4M3::decode(0x01), 0x1p-9F);
  EXPECT_EQ(E4M3::decode(0x38), 1.0F);
  EXPECT_FALSE(E4M3::valid(0x7F));
  EXPECT_TRUE(E4M3::valid(0xFE));
  EXPECT_EQ(E5M2::decode(0x7B), 57344.0F);
  EXPECT_EQ(E5M2::decode(0x81), -0x1p-16F);
  EXPECT_EQ(E5M2::decode(0x3C), 1.0F);
  EXPECT_FALSE(E5M2::valid(0x7C));
  EXPECT_FALSE(Int8::valid(0x80));
  EXPECT_EQ(Int4::decode(0x7), 7.0F);
  EXPECT_EQ(Int4::decode(0x9), -7.0F);
  EXPECT_TRUE(Int4::valid(0x97));
  EXPECT_FALSE(Int4::valid(0x08));
  EXPECT_FALSE(Int4::valid(0x80));
}

TEST(ScaledCast, TakesTheSmallestScaleThatFits) {
  const auto scale = [](ScaledCode code, float largest) {
    const Array gradient = array_of({0.0F, -largest});
    Array payload(3, 0);
    EXPECT_TRUE(scaled_encode({code}, 2, {gradient.data()}, payload.data()));
    return static_cast<int>(std::to_integer<std::int8_t>(payload.data()[0]));
  };
  EXPECT_EQ(scale(ScaledCode::kInt8, 127.0F), 0);
  EXPECT_EQ(scale(ScaledCode::kInt8, 127.01F), 1);
  EXPECT_EQ(scale(ScaledCode::kInt8, 63.5F), -1);
  EXPECT_EQ(scale(ScaledCode::kE4M3, 448.0F), 0);
  EXPECT_EQ(scale(ScaledCode::kE4M3, 448.1F), 1);
  EXPECT_EQ(scale(ScaledCode::kE5M2, 57344.0F), 0);
  EXPECT_EQ(scale(ScaledCode::kE5M2, 28673.0F), 0);
  EXPECT_EQ(scale(ScaledCode::kInt4, 7.0F), 0);
  EXPECT_EQ(scale(ScaledCode::kInt4, 7.01F), 1);
  EXPECT_EQ(scale(ScaledCode::kInt4, 3.5F), -1);
  EXPECT_EQ(scale(ScaledCode::kInt4, std::numeric_limits<float>::max()), 126);
  EXPECT_EQ(scale(ScaledCode::kInt8, std::numeric_limits<float>::max()), 122);
  EXPECT_EQ(scale(ScaledCode::kInt8, 0.0F), -126);
  EXPECT_EQ(scale(ScaledCode::kE4M3, 0x1p-140F), -126);
}

TEST(ScaledCast, PacksTwoCodesOfABlockInAByte) {
  // Blocks of 3 and 2, with scales 2 and 1/4. Ties go to even codes: 5 / 2 to 2, and 0.375 * 4 to 2.
  const Array gradient = array_of({14, -6, 5, 0.375F, -1.75F});
  const Array residual = array_of(std::vector<float>(5, 0.0F));
  Array left(20, 0);
  const ScaledCast how{ScaledCode::kInt4, 3};
  ASSERT_EQ(scaled_bytes(how, 5), 5U);
  Array payload(5, 0xFF);
  ASSERT_TRUE(scaled_encode(how, 5, {gradient.data(), residual.data(), left.data()}, payload.data()));
  const std::vector<std::byte> expected = {std::byte{1}, std::byte{0xFE}, std::byte{0xD7}, std::byte{2},
                                           std::byte{0x92}};
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), payload.data()));
  EXPECT_EQ(floats(left), (std::vector<float>{0, 0, 1, -0.125F, 0}));
  Array sum(20, 0);
  const std::byte* const twice[] = {payload.data(), payload.data()};
  scaled_sum(how, 5, twice, sum.data());
  EXPECT_EQ(floats(sum), (std::vector<float>{28, -12, 8, 1, -3.5F}));
}

TEST(ScaledCast, ConservesEveryBit) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const ScaledCast how = random_choice(random);
    const std::size_t n = random_length(seed, kScaledLengths, random);
    const Shape shape = seed % 2 == 0 ? Shape::kNormal : Shape::kTiny;
    const Array gradient = gradient_array(n, shape, random);
    Array residual = gradient_array(n, shape, random);
    const std::vector<float> g = floats(gradient);
    const std::vector<float> old = floats(residual);
    Array payload(scaled_bytes(how, count(gradient)), 0);
    ASSERT_TRUE(
        scaled_encode(how, count(gradient), {gradient.data(), residual.data(), residual.data()}, payload.data()));
    Array sent(gradient.size(), 0);
    const std::byte* only = payload.data();
    scaled_sum(how, count(gradient), {&only, 1}, sent.data());
    const std::vector<float> travelled = floats(sent);
    const std::vector<float> left = floats(residual);
    for (std::size_t i = 0; i < n; ++i) {
      // float64 holds the sum of both exactly.
      ASSERT_EQ(static_cast<double>(travelled[i]) + static_cast<double>(left[i]), static_cast<double>(g[i] + old[i]));
    }
  }
}

TEST(ScaledCast, SumsAreTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      SCOPED_TRACE(target + " seed " + std::to_string(seed));
      Random random(seed);
      const ScaledCast how = random_choice(random);
      const std::size_t n = random_length(seed, kScaledLengths, random);
      std::vector<Array> payloads;
      std::vector<const std::byte*> pointers;
      for (std::size_t rank = 0; rank < seed % 5; ++rank) {
        const Array gradient = gradient_array(n, seed % 3 == 0 ? Shape::kAny : Shape::kNormal, random);
        payloads.emplace_back(scaled_bytes(how, count(gradient)), random());
        scaled_encode(how, count(gradient), {gradient.data()}, payloads.back().data());
      }
      for (const Array& payload : payloads) {
        pointers.push_back(payload.data());
      }
      Array sum(n * sizeof(float), random());
      Array expected(n * sizeof(float), 0);
      scaled_sum(how, static_cast<std::int64_t>(n), pointers, sum.data());
      ref::scaled_sum(how, static_cast<std::int64_t>(n), pointers, expected.data());
      ASSERT_EQ(sum.copy(), expected.copy());
      ASSERT_TRUE(sum.guards_intact());
    }
  });
}

TEST(ScaledCast, MarksBlocksThatAreNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const Array gradient = array_of({1, 2, inf, 3, 4});
  Array residual = array_of(std::vector<float>(5, 0.0F));
  const ScaledCast how{ScaledCode::kInt8, 2};
  Array payload(scaled_bytes(how, 5), 0);
  EXPECT_FALSE(scaled_encode(how, 5, {gradient.data(), residual.data(), residual.data()}, payload.data()));
  EXPECT_EQ(floats(residual), (std::vector<float>{0, 0, inf, 3, 0}));
  Array sum(20, 0);
  const std::byte* only = payload.data();
  scaled_sum(how, 5, {&only, 1}, sum.data());
  const std::vector<float> values = floats(sum);
  EXPECT_TRUE(std::isnan(values[2]) && std::isnan(values[3]));
  EXPECT_EQ(values[0], 1.0F);
  EXPECT_EQ(values[4], 4.0F);
}

TEST(ScaledCast, FindsBadPayloads) {
  const auto valid = [](ScaledCode code, int exponent, int byte) {
    const std::byte payload[2] = {static_cast<std::byte>(exponent), static_cast<std::byte>(byte)};
    return scaled_valid({code}, 1, payload);
  };
  EXPECT_TRUE(valid(ScaledCode::kInt8, 0, 0x81));
  EXPECT_TRUE(valid(ScaledCode::kInt8, -128, 0));
  EXPECT_FALSE(valid(ScaledCode::kInt8, -127, 0));
  EXPECT_FALSE(valid(ScaledCode::kInt8, 123, 0));
  EXPECT_FALSE(valid(ScaledCode::kInt8, 0, 0x80));
  EXPECT_TRUE(valid(ScaledCode::kInt4, 126, 0x09));
  EXPECT_FALSE(valid(ScaledCode::kInt4, 127, 0x09));
  EXPECT_FALSE(valid(ScaledCode::kInt4, 0, 0x08));
  EXPECT_FALSE(valid(ScaledCode::kInt4, 0, 0x10));
  EXPECT_FALSE(valid(ScaledCode::kE4M3, 0, 0xFF));
  EXPECT_FALSE(valid(ScaledCode::kE5M2, 0, 0x7C));
}

TEST(ScaledCast, RefusesImpossibleSizes) {
  std::byte none{};
  EXPECT_THROW(scaled_bytes({ScaledCode::kInt8, 0}, 1), BugError);
  EXPECT_THROW(scaled_bytes({ScaledCode::kInt8}, -1), BugError);
  EXPECT_THROW(scaled_encode({ScaledCode::kInt8}, 1, {&none, &none, nullptr}, &none), BugError);
  EXPECT_EQ(scaled_bytes({ScaledCode::kInt8}, 257), 259U);
  EXPECT_EQ(scaled_bytes({ScaledCode::kInt4}, 257), 131U);
  EXPECT_EQ(scaled_bytes({ScaledCode::kInt4, 3}, 7), 3U + 5U);
}

}  // namespace
}  // namespace sirtaki::kernels
