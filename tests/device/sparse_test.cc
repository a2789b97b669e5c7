#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <memory>

#include "kernels/sparse_sum/sparse_sum.h"
#include "kernels/threshold_select/threshold_select.h"
#include "tests/device/machine.h"
#include "tests/unit/kernels/oracles.h"

namespace sirtaki::device {
namespace {

using kernels::kValues;
using kernels::Random;
using kernels::Selected;
using kernels::Shape;
using kernels::ThresholdSelect;

std::size_t random_sparse_length(std::uint64_t seed, Random& random) {
  return seed % 5 == 0 ? random() % 5 : random() % std::min<std::size_t>(15000, most_elements());
}

// Thresholds that few, many or all elements reach, capacities below and above these.
ThresholdSelect random_selection(std::uint64_t seed, std::size_t n, Random& random) {
  static const std::vector<float> kThresholds = {0.025F, 0.01F, 1.0F, 2.0F, 1e-45F, 1e-40F, 1e30F};
  ThresholdSelect how{kernels::pick(kThresholds, random), static_cast<std::int64_t>(n), kValues[seed % 3]};
  if (random() % 3 != 0) {
    how.capacity = static_cast<std::int64_t>(random() % (n / 4 + 2));
  }
  return how;
}

float magnitude_of_rank(Gradient& gradient, std::int64_t rank) {
  std::vector<std::uint32_t> keys;
  for (std::size_t i = 0; i < static_cast<std::size_t>(gradient.n()); ++i) {
    keys.push_back(kernels::ref::magnitude_bits(kernels::ref::element(gradient.host(), i)));
  }
  std::sort(keys.begin(), keys.end(), std::greater());
  return std::bit_cast<float>(keys[static_cast<std::size_t>(rank - 1)]);
}

std::string words(const ThresholdSelect& how, std::size_t n, std::uint64_t seed) {
  return "threshold " + std::to_string(how.threshold) + " capacity " + std::to_string(how.capacity) + " n " +
         std::to_string(n) + " seed " + std::to_string(seed);
}

constexpr std::size_t kCount = sizeof(std::uint32_t);

// Returns a payload that begins with the number of its entries and ends with zeros.
std::vector<std::byte> counted(const ThresholdSelect& how, std::int64_t n, const kernels::Feedback& arrays,
                               Selected& found) {
  std::vector<std::byte> payload(kCount + kernels::threshold_max_bytes(how, n));
  found = kernels::ref::threshold_select(how, n, arrays, payload.data() + kCount);
  kernels::ref::Plain<std::uint32_t>::store(static_cast<std::uint32_t>(found.entries), payload.data());
  std::fill(payload.begin() + static_cast<std::ptrdiff_t>(kCount + kernels::sparse_bytes(how.value, n, found.entries)),
            payload.end(), std::byte{0});
  return payload;
}

// `rank`: 0, or the rank whose magnitude is the threshold.
void expect_same_selection(ThresholdSelect how, Gradient& gradient, std::size_t shift, std::int64_t rank = 0) {
  Memory payload(kCount + kernels::threshold_max_bytes(how, gradient.n()) + 6, shift);
  Memory note(sizeof(kernels::cuda::ThresholdFound));
  Memory scratch(kernels::cuda::threshold_scratch_bytes(gradient.n()));
  const auto arrays = gradient.device();
  auto* const there = reinterpret_cast<kernels::cuda::ThresholdFound*>(note.data());
  const kernels::cuda::ThresholdEncode args{how,   rank,          gradient.n(), arrays, payload.data(), payload.size(),
                                            there, scratch.data()};
  ASSERT_TRUE(device::kernels().threshold_select(args, nullptr).ok());
  const auto found = note.value<kernels::cuda::ThresholdFound>();
  EXPECT_EQ(found.exact, rank != 0 ? 1U : 0U);
  if (rank != 0) {
    how.threshold = magnitude_of_rank(gradient, rank);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(found.threshold), std::bit_cast<std::uint32_t>(how.threshold));
    how.threshold = how.threshold == 0 ? std::numeric_limits<float>::denorm_min() : how.threshold;
    if (!(how.threshold > 0)) {  // NaN, which makes the payload useless
      EXPECT_EQ(found.not_finite, how.capacity > 0 ? 1U : 0U);
      return;
    }
  }
  Selected selected;
  std::vector<std::byte> expected = counted(how, gradient.n(), gradient.host(), selected);
  expected.resize(payload.size());
  EXPECT_EQ(found.wanted, static_cast<std::uint32_t>(selected.wanted));
  EXPECT_EQ(found.not_finite, selected.finite ? 0U : 1U);
  EXPECT_EQ(Gradient::first_difference(expected, payload.copy()), "");
  gradient.expect_same_left();
}

TEST(ThresholdSelectOnDevice, WritesTheBytesOfTheReference) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const std::size_t n = random_sparse_length(seed, random);
    const ThresholdSelect how = random_selection(seed, n, random);
    SCOPED_TRACE(words(how, n, seed));
    set_order(static_cast<int>(seed) % orders());
    Gradient gradient(n, kernels::kShapes[seed / 3 % 6], seed % 4 != 0, random);
    expect_same_selection(how, gradient, 2 * (random() % 2));
  }
}

TEST(ThresholdSelectOnDevice, FindsTheThresholdOfARank) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const std::size_t n = 1 + random_sparse_length(seed, random);
    ThresholdSelect how = random_selection(seed, n, random);
    how.threshold = 1;
    const auto rank = static_cast<std::int64_t>(1 + random() % n);
    SCOPED_TRACE(words(how, n, seed) + " rank " + std::to_string(rank));
    set_order(static_cast<int>(seed) % orders());
    Gradient gradient(n, kernels::kShapes[seed % 6], seed % 4 != 0, random);
    expect_same_selection(how, gradient, 2 * (random() % 2), rank);
  }
}

TEST(ThresholdSelectOnDevice, TakesAllThatIsNotZeroIfThatIsLessThanTheRank) {
  Random random(8);
  const ThresholdSelect how{1, 9000, DType::kF32};
  Gradient gradient(9000, Shape::kZeros, true, random);
  expect_same_selection(how, gradient, 0, 4000);
}

TEST(ThresholdSelectOnDevice, WritesTheBytesOfTheReferenceForManyTiles) {
  const auto all = static_cast<std::int64_t>(most_elements());
  for (const ThresholdSelect& how :
       {ThresholdSelect{0.02F, all, DType::kF32}, ThresholdSelect{0.01F, all / 50, DType::kBF16},
        ThresholdSelect{1.0F, all / 3, DType::kF16}}) {
    Random random(3);
    const std::size_t n = most_elements() - 7;
    SCOPED_TRACE(words(how, n, 3));
    Gradient gradient(n, how.threshold < 1 ? Shape::kNormal : Shape::kFewMagnitudes, true, random);
    expect_same_selection(how, gradient, 0);
  }
}

// More tiles than a block has threads, equal elements in all of them; then the sum of the selected elements.
TEST(SparseOnDevice, IsTheReferenceWhereAScanTakesTwoTurns) {
  Random random(4);
  const std::size_t n = 258 * 4096 - 9;
  const auto elements = static_cast<std::int64_t>(n);
  const ThresholdSelect how{2.0F, elements / 3 - 5000, DType::kF16};
  SCOPED_TRACE(words(how, n, 4));
  Gradient gradient(n, Shape::kFewMagnitudes, true, random);
  expect_same_selection(how, gradient, 0);
  Selected selected;
  const std::vector<std::byte> payload = counted(how, elements, gradient.host(), selected);
  EXPECT_GT(selected.wanted, selected.entries);
  Memory copy(payload);
  Memory out(n * sizeof(float));
  Memory firsts(kernels::cuda::sparse_scratch_bytes(elements, 1));
  std::vector<std::byte> expected(out.size());
  const kernels::SparsePayload host{payload.data() + kCount, selected.entries};
  const std::byte* const there = copy.data();
  kernels::sparse_sum(how.value, elements, {&host, 1}, expected.data());
  const kernels::cuda::SparseSum args{
      how.value, elements, {&there, 1}, out.data(), reinterpret_cast<std::uint32_t*>(firsts.data())};
  ASSERT_TRUE(device::kernels().sparse_sum(args, nullptr).ok());
  EXPECT_EQ(Gradient::first_difference(expected, out.copy()), "");
}

TEST(SparseSumOnDevice, AddsAsTheReferenceDoes) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const std::size_t n = seed == 9 ? most_elements() : random_sparse_length(seed, random);
    const DType value = kValues[seed % 3];
    const auto elements = static_cast<std::int64_t>(n);
    SCOPED_TRACE("n " + std::to_string(n) + " seed " + std::to_string(seed));
    set_order(static_cast<int>(seed) % orders());
    std::vector<std::vector<std::byte>> payloads;
    std::vector<std::unique_ptr<Memory>> copies;
    std::vector<kernels::SparsePayload> host;
    std::vector<const std::byte*> there;
    for (std::size_t r = 0; r < seed % 4; ++r) {
      ThresholdSelect how = random_selection(seed + r, n, random);
      how.value = value;
      const kernels::Array gradient = kernels::gradient_array(n, kernels::kShapes[(seed + r) % 6], random);
      Selected selected;
      payloads.push_back(counted(how, elements, {gradient.data()}, selected));
      copies.push_back(std::make_unique<Memory>(payloads.back(), 2 * (random() % 2)));
      host.push_back({nullptr, selected.entries});
      there.push_back(copies.back()->data());
    }
    for (std::size_t r = 0; r < host.size(); ++r) {
      host[r].data = payloads[r].data() + kCount;
    }
    Memory out(n * sizeof(float), 4 * (random() % 4));
    Memory firsts(kernels::cuda::sparse_scratch_bytes(elements, host.size()));
    std::vector<std::byte> expected(out.size());
    kernels::ref::sparse_sum(value, elements, host, expected.data());
    const auto divisor = static_cast<std::int64_t>(1 + seed % 3);
    divide(expected, divisor);
    const kernels::cuda::SparseSum args{
        value, elements, there, out.data(), reinterpret_cast<std::uint32_t*>(firsts.data()), divisor};
    ASSERT_TRUE(device::kernels().sparse_sum(args, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, out.copy()), "");
  }
}

TEST(SparseOnDevice, RefusesWhatItCannotRead) {
  Memory memory(16384);
  auto* const found = reinterpret_cast<kernels::cuda::ThresholdFound*>(memory.data());
  const auto select = [&](const ThresholdSelect& how, std::size_t payload, std::int64_t rank = 0) {
    const kernels::cuda::ThresholdEncode args{
        how, rank, 4, {memory.data()}, memory.data() + 1024 + payload, 64, found, memory.data() + 2048};
    return device::kernels().threshold_select(args, nullptr).ok();
  };
  EXPECT_TRUE(select({1.0F, 4}, 0));
  EXPECT_TRUE(select({0.0F, 4}, 0, 4));
  EXPECT_FALSE(select({0.0F, 4}, 0));
  EXPECT_FALSE(select({1.0F, 4}, 0, 5));
  EXPECT_FALSE(select({1.0F, -1}, 0));
  EXPECT_FALSE(select({1.0F, 4, DType::kI8}, 0));
  EXPECT_FALSE(select({1.0F, 4}, 1));
  kernels::cuda::ThresholdEncode wrong{{1.0F, 4},           0, 4, {memory.data()}, memory.data() + 1024, 28, found,
                                       memory.data() + 2048};
  EXPECT_FALSE(device::kernels().threshold_select(wrong, nullptr).ok()) << "4 + 2 + 4 * 6 bytes";
  wrong.payload_bytes = 64;
  wrong.found = nullptr;
  EXPECT_FALSE(device::kernels().threshold_select(wrong, nullptr).ok());
  wrong.found = found;
  wrong.n = (std::int64_t{1} << 31) + 1;
  EXPECT_FALSE(device::kernels().threshold_select(wrong, nullptr).ok());
  const std::byte* const odd = memory.data() + 1;
  EXPECT_FALSE(device::kernels().sparse_sum({DType::kF32, 4, {&odd, 1}, memory.data(), nullptr}, nullptr).ok());
}

}  // namespace
}  // namespace sirtaki::device
