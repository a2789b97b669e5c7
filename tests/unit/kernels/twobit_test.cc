#include "kernels/twobit/twobit.h"

#include <gtest/gtest.h>

#include "runtime/base/check.h"
#include "tests/unit/kernels/gradients.h"

namespace sirtaki::kernels {
namespace {

constexpr std::size_t kTwobitLengths = 2500;

int random_exponent(Random& random) {
  static const std::vector<int> kEnds = {kTwobitMinExponent, kTwobitMaxExponent, -126, 0, 104};
  return random() % 4 == 0 ? pick(kEnds, random) : -7 - static_cast<int>(random() % 4);
}

void expect_same_stats(const TwobitStats& stats, const TwobitStats& expected) {
  EXPECT_EQ(stats.finite, expected.finite);
  EXPECT_EQ(stats.sent, expected.sent);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(stats.magnitude), std::bit_cast<std::uint64_t>(expected.magnitude));
}

void expect_same_as_reference(int exponent, const Array& gradient, const Array* residual, Random& random) {
  const std::int64_t n = count(gradient);
  const Twins twins(gradient, residual, random);
  Array planes(twobit_bytes(n), random());
  Array expected(twobit_bytes(n), 0);
  const TwobitStats stats = twobit_encode(exponent, n, twins.arrays(), planes.data());
  expect_same_stats(stats, ref::twobit_encode(exponent, n, twins.expected(), expected.data()));
  ASSERT_EQ(planes.copy(), expected.copy());
  twins.expect_same_left();
  ASSERT_TRUE(planes.guards_intact());
  ASSERT_TRUE(twobit_valid(n, planes.data()));
}

TEST(Twobit, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape shape : kShapes) {
      for (std::uint64_t seed = 0; seed < 30; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(shape)) + " seed " + std::to_string(seed));
        Random random(seed);
        const std::size_t n = random_length(seed, kTwobitLengths, random);
        const int exponent = random_exponent(random);
        const Array gradient = gradient_array(n, shape, random);
        const Array residual = gradient_array(n, shape, random);
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(exponent, gradient, &residual, random));
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(exponent, gradient, nullptr, random));
      }
    }
  });
}

TEST(Twobit, ConservesEveryBit) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const std::size_t n = random_length(seed, kTwobitLengths, random);
    const int exponent = random_exponent(random);
    const Array gradient = gradient_array(n, seed % 2 == 0 ? Shape::kNormal : Shape::kTiny, random);
    Array residual = gradient_array(n, Shape::kNormal, random);
    const std::vector<float> g = floats(gradient);
    const std::vector<float> old = floats(residual);
    Array planes(twobit_bytes(count(gradient)), 0);
    twobit_encode(exponent, count(gradient), {gradient.data(), residual.data(), residual.data()}, planes.data());
    Array sent(gradient.size(), 0);
    const TwobitPart part{planes.data(), exponent};
    twobit_sum({&part, 1}, count(gradient), sent.data());
    const std::vector<float> left = floats(residual);
    const std::vector<float> travelled = floats(sent);
    for (std::size_t i = 0; i < n; ++i) {
      // float64 holds the sum of two neighbours in magnitude exactly.
      ASSERT_EQ(static_cast<double>(travelled[i]) + static_cast<double>(left[i]), static_cast<double>(g[i] + old[i]));
    }
  }
}

TEST(Twobit, HasTheDocumentedLayout) {
  EXPECT_EQ(twobit_bytes(0), 0U);
  EXPECT_EQ(twobit_bytes(9), 4U);
  const Array gradient = array_of({1, -1, 0.2F, 3, -0.25F, 0, -0.0F, 0.5F, -2});
  Array residual = array_of(std::vector<float>(9, 0.0F));
  Array planes(4, 0);
  const TwobitStats stats = twobit_encode(-1, 9, {gradient.data(), residual.data(), residual.data()}, planes.data());
  const std::vector<std::byte> expected = {std::byte{0b10001001}, std::byte{0}, std::byte{0b00010010}, std::byte{1}};
  EXPECT_EQ(planes.copy(), expected);
  EXPECT_EQ(floats(residual), (std::vector<float>{0.5F, -0.5F, 0.2F, 2.5F, 0.25F, 0, 0, 0, -1.5F}));
  EXPECT_EQ(stats.sent, 6);
  EXPECT_TRUE(stats.finite);
  EXPECT_FLOAT_EQ(static_cast<float>(stats.magnitude), 7.95F);
}

TEST(Twobit, KeepsWhatItCannotSplitExactly) {
  const Array gradient = array_of({0x1p24F, -0x1.FFFFFEp23F, kInf, kNan});
  Array residual = array_of({0, 0, 0, 0});
  Array planes(2, 0);
  const TwobitStats stats = twobit_encode(0, 4, {gradient.data(), residual.data(), residual.data()}, planes.data());
  EXPECT_FALSE(stats.finite);
  EXPECT_EQ(planes.copy(), (std::vector<std::byte>{std::byte{0}, std::byte{2}}));
  EXPECT_EQ(floats(residual)[0], 0x1p24F);
  EXPECT_EQ(floats(residual)[1], -0x1.FFFFFEp23F + 1);
  EXPECT_EQ(floats(residual)[2], kInf);
}

TEST(Twobit, RoundsToTheNearestAndHalfOfItUp) {
  const Array gradient = array_of({0.5F, -0.5F, 0x1.FFFFFEp-2F, 1.25F});
  Array residual = array_of({0, 0, 0, 0});
  Array planes(2, 0);
  twobit_encode(0, 4, {gradient.data(), residual.data(), residual.data()}, planes.data());
  EXPECT_EQ(floats(residual), (std::vector<float>{-0.5F, 0.5F, 0x1.FFFFFEp-2F, 0.25F}));
}

TEST(Twobit, SendsNoZerosWhereHalfOfTheLeastIsNoNumber) {
  const Array gradient = array_of({0, -0.0F, 0x1p-149F, -0x1p-148F});
  Array residual = array_of({0, 0, 0, 0});
  Array planes(2, 0);
  const Feedback arrays = {gradient.data(), residual.data(), residual.data()};
  EXPECT_EQ(twobit_encode(kTwobitMinExponent, 4, arrays, planes.data()).sent, 2);
  EXPECT_EQ(floats(residual), (std::vector<float>{0, 0, 0, -0x1p-149F}));
}

std::vector<Array> random_planes(std::size_t ranks, std::int64_t n, Random& random) {
  std::vector<Array> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Array gradient = gradient_array(static_cast<std::size_t>(n), Shape::kNormal, random);
    all.emplace_back(twobit_bytes(n), random());
    twobit_encode(-8, n, {gradient.data()}, all.back().data());
  }
  return all;
}

TEST(Twobit, SumsAndCountsAreTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE(target + " seed " + std::to_string(seed));
      Random random(seed);
      const auto n = static_cast<std::int64_t>(random_length(seed, kTwobitLengths, random));
      const std::vector<Array> planes = random_planes(seed % 7, n, random);
      std::vector<TwobitPart> parts;
      std::vector<const std::byte*> pointers;
      const int common = random_exponent(random);
      for (const Array& one : planes) {
        parts.push_back({one.data(), seed % 2 == 0 ? common : random_exponent(random)});
        pointers.push_back(one.data());
      }
      Array sum(static_cast<std::size_t>(n) * 4, random());
      Array expected_sum(sum.size(), 0);
      twobit_sum(parts, n, sum.data());
      ref::twobit_sum(parts, n, expected_sum.data());
      ASSERT_EQ(sum.copy(), expected_sum.copy());
      Array counts(static_cast<std::size_t>(n), random());
      Array expected_counts(counts.size(), 0);
      twobit_count(pointers, n, counts.data());
      ref::twobit_count(pointers, n, expected_counts.data());
      ASSERT_EQ(counts.copy(), expected_counts.copy());
      const int exponent = random_exponent(random);
      twobit_from_counts(exponent, n, counts.data(), sum.data());
      ref::twobit_from_counts(exponent, n, counts.data(), expected_sum.data());
      ASSERT_EQ(sum.copy(), expected_sum.copy());
      ASSERT_TRUE(sum.guards_intact() && counts.guards_intact());
    }
  });
}

TEST(Twobit, CountsGiveTheSameBitsAsSums) {
  Random random(17);
  const std::int64_t n = 1000;
  const std::vector<Array> planes = random_planes(5, n, random);
  std::vector<TwobitPart> parts;
  std::vector<const std::byte*> pointers;
  for (const Array& one : planes) {
    parts.push_back({one.data(), -8});
    pointers.push_back(one.data());
  }
  Array sum(n * 4, 0);
  Array counts(n, 0);
  Array from_counts(n * 4, 0);
  twobit_sum(parts, n, sum.data());
  twobit_count(pointers, n, counts.data());
  twobit_from_counts(-8, n, counts.data(), from_counts.data());
  EXPECT_EQ(sum.copy(), from_counts.copy());
}

TEST(Twobit, PacksCountsInAsFewBitsAsTheyNeed) {
  EXPECT_EQ(twobit_count_bits(1), 2);
  EXPECT_EQ(twobit_count_bits(2), 3);
  EXPECT_EQ(twobit_count_bits(3), 3);
  EXPECT_EQ(twobit_count_bits(4), 4);
  EXPECT_EQ(twobit_count_bits(127), 8);
  // Codes of two planes: -2 is 000, 0 is 010, 1 is 011, 2 is 100.
  const std::vector<std::int8_t> counts = {-2, 0, 1, 2};
  std::vector<std::byte> planes(twobit_packed_bytes(2, 4));
  twobit_pack_counts(2, 4, std::as_bytes(std::span(counts)).data(), planes.data());
  EXPECT_EQ(planes, (std::vector<std::byte>{std::byte{0b0100}, std::byte{0b0110}, std::byte{0b1000}}));
}

TEST(Twobit, PackedCountsAreTheReferenceOnEveryTargetAndComeBack) {
  on_every_target([](const std::string& target) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE(target + " seed " + std::to_string(seed));
      Random random(seed);
      const auto n = static_cast<std::int64_t>(random_length(seed, kTwobitLengths, random));
      const int most = seed % 3 == 0 ? 1 + static_cast<int>(random() % 127) : 1 + static_cast<int>(seed % 5);
      Array counts(static_cast<std::size_t>(n), 0);
      for (std::size_t i = 0; i < counts.size(); ++i) {
        const auto range = static_cast<std::uint64_t>(2 * most + 1);
        counts.data()[i] = static_cast<std::byte>(static_cast<int>(random() % range) - most);
      }
      Array planes(twobit_packed_bytes(most, n), random());
      Array expected(planes.size(), 0);
      twobit_pack_counts(most, n, counts.data(), planes.data());
      ref::twobit_pack_counts(most, n, counts.data(), expected.data());
      ASSERT_EQ(planes.copy(), expected.copy());
      Array back(counts.size(), random());
      ASSERT_TRUE(twobit_unpack_counts(most, n, planes.data(), back.data()));
      ASSERT_EQ(back.copy(), counts.copy());
      ASSERT_TRUE(ref::twobit_unpack_counts(most, n, planes.data(), back.data()));
      ASSERT_EQ(back.copy(), counts.copy());
      ASSERT_TRUE(planes.guards_intact() && back.guards_intact());
    }
  });
}

TEST(Twobit, FindsPlanesThatAreNoCounts) {
  on_every_target([](const std::string& target) {
    for (const int most : {1, 2, 3, 4, 127}) {
      for (const std::int64_t n : {1, 8, 63, 64, 130}) {
        SCOPED_TRACE(target + " most " + std::to_string(most) + " n " + std::to_string(n));
        const auto bits = static_cast<std::size_t>(twobit_count_bits(most));
        const std::size_t plane = twobit_bytes(n) / 2;
        Array counts(static_cast<std::size_t>(n), 0);
        for (std::size_t i = 0; i < 8 * plane; ++i) {
          // All ones are above every count.
          Array planes(bits * plane, 3);
          std::memset(planes.data(), 0, planes.size());
          for (std::size_t k = 0; k < bits; ++k) {
            planes.data()[k * plane + i / 8] |= std::byte{1} << (i % 8);
          }
          ASSERT_FALSE(twobit_unpack_counts(most, n, planes.data(), counts.data())) << i;
          ASSERT_FALSE(ref::twobit_unpack_counts(most, n, planes.data(), counts.data())) << i;
        }
      }
    }
  });
}

TEST(Twobit, FindsBadPlanes) {
  for (const std::int64_t n : {1, 8, 9, 63, 64, 130}) {
    const std::size_t half = twobit_bytes(n) / 2;
    for (std::size_t i = 0; i < 8 * half; ++i) {
      Array planes(2 * half, 3);
      std::memset(planes.data(), 0, 2 * half);
      planes.data()[i / 8] = std::byte{1} << (i % 8);
      ASSERT_EQ(twobit_valid(n, planes.data()), static_cast<std::int64_t>(i) < n) << n << ", bit " << i;
      planes.data()[half + i / 8] = planes.data()[i / 8];
      ASSERT_FALSE(twobit_valid(n, planes.data())) << n << ", bit " << i;
    }
  }
  EXPECT_TRUE(twobit_valid(0, nullptr));
}

TEST(Twobit, RefusesImpossibleArguments) {
  std::byte none{};
  EXPECT_THROW(twobit_bytes(-1), BugError);
  EXPECT_THROW(twobit_encode(128, 1, {&none}, &none), BugError);
  EXPECT_THROW(twobit_encode(0, 1, {&none, &none, nullptr}, &none), BugError);
  EXPECT_THROW(twobit_from_counts(-150, 1, &none, &none), BugError);
  const std::vector<const std::byte*> many(128, &none);
  EXPECT_THROW(twobit_count(many, 1, &none), BugError);
  EXPECT_THROW(twobit_count_bits(0), BugError);
  EXPECT_THROW(twobit_pack_counts(128, 1, &none, &none), BugError);
}

}  // namespace
}  // namespace sirtaki::kernels
