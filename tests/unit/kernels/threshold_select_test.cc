#include "kernels/threshold_select/threshold_select.h"

#include <gtest/gtest.h>

#include "kernels/kth_magnitude/kth_magnitude.h"
#include "kernels/sparse_sum/sparse_sum.h"
#include "runtime/base/check.h"
#include "tests/unit/kernels/gradients.h"
#include "tests/unit/kernels/oracles.h"

namespace sirtaki::kernels {
namespace {

constexpr std::size_t kThresholdLengths = 9000;

ThresholdSelect random_choice(std::int64_t n, Random& random) {
  const float threshold = pick<float>({0.02F, 0.01F, 1.0F, 2.0F, 1e-40F, 1e-45F, kInf}, random);
  const std::int64_t capacity = pick<std::int64_t>({0, 1, n / 50, n / 4, n, 2 * n}, random);
  return {threshold, capacity, pick<DType>({DType::kF32, DType::kF16, DType::kBF16}, random)};
}

std::vector<std::byte> used(const Array& payload, const ThresholdSelect& how, std::int64_t n, std::int64_t entries) {
  const std::vector<std::byte> all = payload.copy();
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(sparse_bytes(how.value, n, entries))};
}

void expect_same_as_reference(const ThresholdSelect& how, const Array& gradient, const Array* residual,
                              Random& random) {
  const std::int64_t n = count(gradient);
  const Twins twins(gradient, residual, random);
  Array payload(threshold_max_bytes(how, n), random());
  Array expected(threshold_max_bytes(how, n), 0);
  const Selected selected = threshold_select(how, n, twins.arrays(), payload.data());
  const Selected reference = ref::threshold_select(how, n, twins.expected(), expected.data());
  ASSERT_EQ(selected.entries, reference.entries);
  ASSERT_EQ(selected.wanted, reference.wanted);
  ASSERT_EQ(selected.finite, reference.finite);
  ASSERT_EQ(used(payload, how, n, selected.entries), used(expected, how, n, selected.entries));
  twins.expect_same_left();
  ASSERT_TRUE(payload.guards_intact());
  ASSERT_TRUE(sparse_valid(how.value, n, {payload.data(), selected.entries}));
}

TEST(ThresholdSelect, IsTheReferenceOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const Shape shape : kShapes) {
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        SCOPED_TRACE(target + " shape " + std::to_string(static_cast<int>(shape)) + " seed " + std::to_string(seed));
        Random random(seed);
        const std::size_t n = random_length(seed, kThresholdLengths, random);
        const ThresholdSelect how = random_choice(static_cast<std::int64_t>(n), random);
        const Array gradient = gradient_array(n, shape, random);
        const Array residual = gradient_array(n, shape, random);
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(how, gradient, &residual, random));
        ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(how, gradient, nullptr, random));
      }
    }
  });
}

// Large values are sent as infinity in float16 and leave no residual, so they could not be taken back.
TEST(ThresholdSelect, OverflowsItsCapacityAsTheReferenceWithHugeHalves) {
  on_every_target([](const std::string& target) {
    SCOPED_TRACE(target);
    Random random(9);
    std::vector<float> huge(3000);
    for (float& value : huge) {
      value = 0x1p28F + 0x1p20F * static_cast<float>(random() % 4096);
    }
    const Array gradient = array_of(huge);
    const Array residual = array_of(std::vector<float>(huge.size(), 0.0F));
    for (const DType value : {DType::kF16, DType::kBF16, DType::kF32}) {
      ASSERT_NO_FATAL_FAILURE(expect_same_as_reference(ThresholdSelect{1.0F, 100, value}, gradient, &residual, random));
    }
  });
}

TEST(ThresholdSelect, ConservesEveryBit) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const std::size_t n = random_length(seed, kThresholdLengths, random);
    const ThresholdSelect how = random_choice(static_cast<std::int64_t>(n), random);
    const Array gradient = gradient_array(n, seed % 2 == 0 ? Shape::kNormal : Shape::kTiny, random);
    Array residual = gradient_array(n, Shape::kNormal, random);
    const std::vector<float> g = floats(gradient);
    const std::vector<float> old = floats(residual);
    Array payload(threshold_max_bytes(how, count(gradient)), 0);
    const Selected selected =
        threshold_select(how, count(gradient), {gradient.data(), residual.data(), residual.data()}, payload.data());
    Array sent(gradient.size(), 0);
    const SparsePayload only{payload.data(), selected.entries};
    sparse_sum(how.value, count(gradient), {&only, 1}, sent.data());
    const std::vector<float> travelled = floats(sent);
    const std::vector<float> left = floats(residual);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(travelled[i] + left[i], g[i] + old[i]) << "element " << i;
    }
  }
}

TEST(ThresholdSelect, SendsTheLargestWhereTheCapacityIsTooSmall) {
  const Array gradient = array_of({1, -3, 2, 3, 0.5F, -2});
  Array residual = array_of(std::vector<float>(6, 0.0F));
  const ThresholdSelect how{1.0F, 3};
  Array payload(threshold_max_bytes(how, 6), 0);
  const Selected selected =
      threshold_select(how, 6, {gradient.data(), residual.data(), residual.data()}, payload.data());
  EXPECT_EQ(selected.entries, 3);
  EXPECT_EQ(selected.wanted, 5);
  EXPECT_TRUE(selected.finite);
  // The first of 2 and -2 is selected.
  EXPECT_EQ(floats(residual), (std::vector<float>{1, 0, 0, 0, 0.5F, -2}));
  const std::vector<float> values = {-3, 2, 3};
  const std::vector<std::uint16_t> offsets = {1, 2, 3};
  EXPECT_EQ(static_cast<int>(payload.data()[0]), 3);
  std::vector<float> sent(3);
  std::memcpy(sent.data(), payload.data() + 2, 12);
  EXPECT_EQ(sent, values);
  EXPECT_EQ(std::memcmp(payload.data() + 14, offsets.data(), 6), 0);
}

TEST(ThresholdSelect, SendsNanAndInfinityAndSaysSo) {
  const Array gradient = array_of({1, kNan, 2, -kInf});
  const ThresholdSelect how{100.0F, 4};
  Array payload(threshold_max_bytes(how, 4), 0);
  const Selected selected = threshold_select(how, 4, {gradient.data()}, payload.data());
  EXPECT_EQ(selected.entries, 2);
  EXPECT_FALSE(selected.finite);
}

TEST(ThresholdSelect, RefusesImpossibleArguments) {
  std::byte none{};
  EXPECT_THROW(threshold_select({0.0F, 1}, 0, {&none}, &none), BugError);
  EXPECT_THROW(threshold_select({1.0F, -1}, 0, {&none}, &none), BugError);
  EXPECT_THROW(threshold_select({1.0F, 1}, 1, {&none, &none, nullptr}, &none), BugError);
  EXPECT_THROW(sparse_bytes(DType::kF64, 1, 1), BugError);
  EXPECT_THROW(sparse_bytes(DType::kF32, 1, 2), BugError);
}

TEST(SparseSum, AddsInTheirOrderAsTheReference) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const std::size_t n = random_length(seed, kThresholdLengths, random);
    ThresholdSelect how = random_choice(static_cast<std::int64_t>(n), random);
    how.threshold = 0.005F;
    std::vector<Array> arrays;
    std::vector<SparsePayload> payloads;
    // One case needs more than one batch.
    const std::size_t ranks = seed == 7 ? 70 : seed % 6;
    arrays.reserve(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Array gradient = gradient_array(n, seed % 2 == 0 ? Shape::kNormal : Shape::kAny, random);
      arrays.emplace_back(threshold_max_bytes(how, count(gradient)), random());
      const Selected selected = threshold_select(how, count(gradient), {gradient.data()}, arrays.back().data());
      payloads.push_back({arrays.back().data(), selected.entries});
    }
    Array sum(n * sizeof(float), random());
    Array expected(n * sizeof(float), 0);
    sparse_sum(how.value, static_cast<std::int64_t>(n), payloads, sum.data());
    ref::sparse_sum(how.value, static_cast<std::int64_t>(n), payloads, expected.data());
    ASSERT_EQ(sum.copy(), expected.copy());
    ASSERT_TRUE(sum.guards_intact());
  }
}

TEST(SparseSum, ClearsWhatWasSent) {
  const Array gradient = array_of({1, -3, 2, 3, 0.5F, -2});
  const ThresholdSelect how{2.0F, 6};
  Array payload(threshold_max_bytes(how, 6), 0);
  const Selected selected = threshold_select(how, 6, {gradient.data()}, payload.data());
  Array momentum = array_of({10, 11, 12, 13, 14, 15});
  sparse_clear(how.value, 6, {payload.data(), selected.entries}, momentum.data());
  EXPECT_EQ(floats(momentum), (std::vector<float>{10, 0, 0, 0, 14, 0}));
}

TEST(SparseSum, FindsBadPayloads) {
  Random random(4);
  const std::int64_t n = 5000;
  const Array gradient = gradient_array(n, Shape::kNormal, random);
  const ThresholdSelect how{0.02F, n};
  Array payload(threshold_max_bytes(how, n), 0);
  const std::int64_t entries = threshold_select(how, n, {gradient.data()}, payload.data()).entries;
  ASSERT_GT(entries, 20);
  ASSERT_TRUE(sparse_valid(how.value, n, {payload.data(), entries}));
  const auto with = [&](std::size_t at, std::uint16_t number) {
    Array bad = payload;
    std::memcpy(bad.data() + at, &number, 2);
    return sparse_valid(how.value, n, {bad.data(), entries});
  };
  const std::size_t offsets = 4 + 4 * static_cast<std::size_t>(entries);
  const std::size_t last = offsets + 2 * static_cast<std::size_t>(entries) - 2;
  EXPECT_FALSE(with(0, 0)) << "a count too small";
  EXPECT_FALSE(with(0, 65535)) << "a count too large";
  EXPECT_FALSE(with(offsets, 4096)) << "behind the tile";
  EXPECT_FALSE(with(last, 904)) << "behind the last element";
  std::uint16_t second = 0;
  std::memcpy(&second, payload.data() + offsets + 2, 2);
  EXPECT_FALSE(with(offsets, second)) << "twice the same";
}

TEST(KthMagnitude, IsTheReference) {
  for (const Shape shape : kShapes) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE("shape " + std::to_string(static_cast<int>(shape)) + " seed " + std::to_string(seed));
      Random random(seed);
      const std::size_t n = 1 + random_length(seed, kThresholdLengths, random);
      const Array data = gradient_array(n, shape, random);
      const auto k = static_cast<std::int64_t>(1 + random() % n);
      const KthMagnitude kth = kth_magnitude(count(data), k, data.data());
      const KthMagnitude expected = ref::kth_magnitude(count(data), k, data.data());
      ASSERT_EQ(kth.key, expected.key);
      ASSERT_EQ(kth.above, expected.above);
      ASSERT_LT(kth.above, k);
    }
  }
}

TEST(KthMagnitude, RefusesPlacesThatDoNotExist) {
  const Array data = array_of({1});
  EXPECT_THROW(kth_magnitude(1, 0, data.data()), BugError);
  EXPECT_THROW(kth_magnitude(1, 2, data.data()), BugError);
}

}  // namespace
}  // namespace sirtaki::kernels
