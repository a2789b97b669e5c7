#include "kernels/onebit/onebit.h"

#include <gtest/gtest.h>

#include "kernels/onebit/scale.h"
#include "runtime/base/check.h"
#include "tests/unit/kernels/gradients.h"

namespace sirtaki::kernels {
namespace {

constexpr std::size_t kOnebitLengths = 2500;

std::int64_t random_block(Random& random) {
  return pick<std::int64_t>({64, 128, 192, 1024, 65536}, random);
}

void expect_same_as_reference(std::int64_t block, const Array& gradient, const Array* residual, Random& random) {
  const std::int64_t n = count(gradient);
  const Twins twins(gradient, residual, random);
  Array payload(onebit_bytes(block, n), random());
  Array expected(onebit_bytes(block, n), 0);
  const bool finite = onebit_encode(block, n, twins.arrays(), payload.data());
  EXPECT_EQ(finite, ref::onebit_encode(block, n, twins.expected(), expected.data()));
  ASSERT_EQ(payload.copy(), expected.copy());
  twins.expect_same_left();
  ASSERT_TRUE(payload.guards_intact());
  ASSERT_TRUE(onebit_valid(block, n, payload.data()));
}

TEST(Onebit, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape shape : kShapes) {
      for (std::uint64_t seed = 0; seed < 30; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(shape)) + " seed " + std::to_string(seed));
        Random random(seed);
        const std::size_t n = random_length(seed, kOnebitLengths, random);
        const std::int64_t block = random_block(random);
        const Array gradient = gradient_array(n, shape, random);
        const Array residual = gradient_array(n, shape, random);
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(block, gradient, &residual, random));
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(block, gradient, nullptr, random));
      }
    }
  });
}

TEST(Onebit, SumsInOrderAsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      SCOPED_TRACE(target + " seed " + std::to_string(seed));
      Random random(seed);
      const auto n = static_cast<std::int64_t>(random_length(seed, kOnebitLengths, random));
      const std::int64_t block = random_block(random);
      std::vector<Array> payloads;
      for (std::uint64_t rank = 0; rank < seed % 6; ++rank) {
        const Shape shape = seed % 3 == 0 ? Shape::kAny : Shape::kNormal;
        const Array gradient = gradient_array(static_cast<std::size_t>(n), shape, random);
        payloads.emplace_back(onebit_bytes(block, n), random());
        onebit_encode(block, n, {gradient.data()}, payloads.back().data());
      }
      std::vector<const std::byte*> pointers;
      for (const Array& payload : payloads) {
        pointers.push_back(payload.data());
      }
      Array sum(static_cast<std::size_t>(n) * 4, random());
      Array expected(sum.size(), 0);
      onebit_sum(block, n, pointers, sum.data());
      ref::onebit_sum(block, n, pointers, expected.data());
      ASSERT_EQ(sum.copy(), expected.copy());
      ASSERT_TRUE(sum.guards_intact());
    }
  });
}

TEST(Onebit, HasTheDocumentedLayout) {
  EXPECT_EQ(onebit_bytes(64, 0), 0U);
  EXPECT_EQ(onebit_bytes(64, 66), 2U + 9U);
  std::vector<float> values(66, 0.5F);
  values[0] = -3.0F;
  values[65] = -0.25F;
  const Array gradient = array_of(values);
  Array residual = array_of(std::vector<float>(66, 0.0F));
  Array payload(11, 0);
  EXPECT_TRUE(onebit_encode(64, 66, {gradient.data(), residual.data(), residual.data()}, payload.data()));
  std::vector<std::byte> expected(11);
  expected[0] = std::byte{0xFF};  // 0.539 is nearest to 1/2
  expected[1] = std::byte{0xFF};  // 0.375 is half way
  expected[2] = std::byte{1};
  expected[10] = std::byte{2};
  EXPECT_EQ(payload.copy(), expected);
  EXPECT_EQ(floats(residual)[0], -2.5F);
  EXPECT_EQ(floats(residual)[1], 0.0F);
  EXPECT_EQ(floats(residual)[65], 0.25F);
}

TEST(Onebit, TakesTheNearestPowerOfTwo) {
  EXPECT_EQ(onebit_exponent({.sum = 3}, 4), 0);
  EXPECT_EQ(onebit_exponent({.sum = 2.999999}, 4), -1);
  EXPECT_EQ(onebit_exponent({.sum = 0x1p129}, 2), 127);
  EXPECT_EQ(onebit_exponent({.sum = 0x1p-126}, 1), -126);
  EXPECT_EQ(onebit_exponent({.sum = 0x1.7p-127}, 1), kOnebitNothing);
  EXPECT_EQ(onebit_exponent({.sum = 0}, 1), kOnebitNothing);
  EXPECT_EQ(onebit_exponent({.sum = static_cast<double>(kNan)}, 1), kOnebitNotFinite);
}

TEST(Onebit, LeavesTheRestExactFromHalfOfTheScaleOn) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Array gradient = gradient_array(1000, Shape::kNormal, random);
    Array residual = gradient_array(1000, Shape::kNormal, random);
    const std::vector<float> g = floats(gradient);
    const std::vector<float> old = floats(residual);
    Array payload(onebit_bytes(128, 1000), 0);
    onebit_encode(128, 1000, {gradient.data(), residual.data(), residual.data()}, payload.data());
    Array sent(gradient.size(), 0);
    const std::byte* const only = payload.data();
    onebit_sum(128, 1000, {&only, 1}, sent.data());
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double scale = std::fabs(floats(sent)[i]);
      const double a = g[i] + old[i];
      const double miss =
          std::fabs(static_cast<double>(floats(sent)[i]) + static_cast<double>(floats(residual)[i]) - a);
      ASSERT_LE(miss, std::fabs(a) >= scale / 2 ? 0 : scale * 0x1p-25);
    }
  }
}

TEST(Onebit, KeepsABlockThatIsNotFiniteAndSendsNan) {
  std::vector<float> values(128, 1.0F);
  values[70] = kInf;
  const Array gradient = array_of(values);
  Array residual = array_of(std::vector<float>(128, 1.0F));
  Array payload(onebit_bytes(64, 128), 0);
  EXPECT_FALSE(onebit_encode(64, 128, {gradient.data(), residual.data(), residual.data()}, payload.data()));
  EXPECT_EQ(floats(residual)[0], 0.0F);
  EXPECT_EQ(floats(residual)[64], 2.0F);
  EXPECT_EQ(floats(residual)[70], kInf);
  Array sum(512, 0);
  const std::byte* const only = payload.data();
  onebit_sum(64, 128, {&only, 1}, sum.data());
  EXPECT_EQ(floats(sum)[63], 2.0F);
  EXPECT_TRUE(std::isnan(floats(sum)[64]));
}

TEST(Onebit, RefusesWhatCannotBe) {
  Array payload(onebit_bytes(64, 9), 0);
  std::memset(payload.data(), 0, payload.size());
  EXPECT_TRUE(onebit_valid(64, 9, payload.data()));
  payload.data()[2] = std::byte{2};
  EXPECT_FALSE(onebit_valid(64, 9, payload.data()));
  EXPECT_THROW(static_cast<void>(onebit_bytes(65, 9)), BugError);
  EXPECT_THROW(static_cast<void>(onebit_bytes(0, 9)), BugError);
  EXPECT_THROW(static_cast<void>(onebit_bytes(64, -1)), BugError);
}

}  // namespace
}  // namespace sirtaki::kernels
