#include <gtest/gtest.h>

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

std::string words(const ThresholdSelect& how, std::size_t n, std::uint64_t seed) {
  return "threshold " + std::to_string(how.threshold) + " capacity " + std::to_string(how.capacity) + " n " +
         std::to_string(n) + " seed " + std::to_string(seed);
}

void expect_same_selection(const ThresholdSelect& how, Gradient& gradient, bool in_place, std::size_t shift) {
  Memory payload(kernels::threshold_max_bytes(how, gradient.n()), shift);
  Memory selected(sizeof(Selected));
  Memory scratch(device::kernels().threshold_scratch_bytes(gradient.n()));
  std::vector<std::byte> expected(payload.size());
  const Selected found = kernels::ref::threshold_select(how, gradient.n(), gradient.host(), expected.data());
  const auto arrays = in_place ? gradient.device_in_place() : gradient.device();
  const kernels::cuda::ThresholdEncode args{
      how, gradient.n(), arrays, payload.data(), reinterpret_cast<Selected*>(selected.data()), scratch.data()};
  ASSERT_TRUE(device::kernels().threshold_select(args, nullptr).ok());
  const auto there = selected.value<Selected>();
  EXPECT_EQ(there.entries, found.entries);
  EXPECT_EQ(there.wanted, found.wanted);
  EXPECT_EQ(there.finite, found.finite);
  // Bytes after the entries are undefined.
  const std::size_t bytes = kernels::sparse_bytes(how.value, gradient.n(), found.entries);
  std::vector<std::byte> written = payload.copy();
  written.resize(bytes);
  expected.resize(bytes);
  EXPECT_EQ(Gradient::first_difference(expected, written), "");
  gradient.expect_same_left(in_place);
}

TEST(ThresholdSelectOnDevice, WritesTheBytesOfTheReference) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const std::size_t n = random_sparse_length(seed, random);
    const ThresholdSelect how = random_selection(seed, n, random);
    SCOPED_TRACE(words(how, n, seed));
    set_order(static_cast<int>(seed) % orders());
    Gradient gradient(n, kernels::kShapes[seed / 3 % 6], seed % 4 != 0, random);
    expect_same_selection(how, gradient, seed % 4 == 1, 2 * (random() % 2));
  }
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
    expect_same_selection(how, gradient, false, 0);
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
  expect_same_selection(how, gradient, false, 0);
  std::vector<std::byte> payload(kernels::threshold_max_bytes(how, elements));
  const Selected selected = kernels::threshold_select(how, elements, gradient.host(), payload.data());
  EXPECT_GT(selected.wanted, selected.entries);
  payload.resize(kernels::sparse_bytes(how.value, elements, selected.entries));
  Memory copy(payload);
  Memory out(n * sizeof(float));
  Memory firsts(sizeof(std::uint32_t) * 258);
  std::vector<std::byte> expected(out.size());
  const kernels::SparsePayload host{payload.data(), selected.entries};
  const kernels::SparsePayload there{copy.data(), selected.entries};
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
    std::vector<kernels::SparsePayload> there;
    for (std::size_t r = 0; r < seed % 4; ++r) {
      ThresholdSelect how = random_selection(seed + r, n, random);
      how.value = value;
      const kernels::Array gradient = kernels::gradient_array(n, kernels::kShapes[(seed + r) % 6], random);
      payloads.emplace_back(kernels::threshold_max_bytes(how, elements));
      const Selected selected = kernels::threshold_select(how, elements, {gradient.data()}, payloads.back().data());
      payloads.back().resize(kernels::sparse_bytes(value, elements, selected.entries));
      copies.push_back(std::make_unique<Memory>(payloads.back(), 2 * (random() % 2)));
      host.push_back({nullptr, selected.entries});
      there.push_back({copies.back()->data(), selected.entries});
    }
    for (std::size_t r = 0; r < host.size(); ++r) {
      host[r].data = payloads[r].data();
    }
    Memory out(n * sizeof(float), 4 * (random() % 4));
    Memory firsts(sizeof(std::uint32_t) * (n / 4096 + 1) * (host.size() + 1));
    std::vector<std::byte> expected(out.size());
    kernels::ref::sparse_sum(value, elements, host, expected.data());
    const kernels::cuda::SparseSum args{value, elements, there, out.data(),
                                        reinterpret_cast<std::uint32_t*>(firsts.data())};
    ASSERT_TRUE(device::kernels().sparse_sum(args, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, out.copy()), "");
  }
}

TEST(SparseOnDevice, RefusesWhatItCannotRead) {
  Memory memory(8192);
  auto* const selected = reinterpret_cast<Selected*>(memory.data());
  const auto select = [&](const ThresholdSelect& how, std::size_t payload) {
    const kernels::cuda::ThresholdEncode args{how,          4, {memory.data()}, memory.data() + payload, selected,
                                              memory.data()};
    return device::kernels().threshold_select(args, nullptr).ok();
  };
  EXPECT_FALSE(select({0.0F, 4}, 0));
  EXPECT_FALSE(select({1.0F, -1}, 0));
  EXPECT_FALSE(select({1.0F, 4, DType::kI8}, 0));
  EXPECT_FALSE(select({1.0F, 4}, 1));
  const kernels::SparsePayload odd{memory.data() + 1, 0};
  EXPECT_FALSE(device::kernels().sparse_sum({DType::kF32, 4, {&odd, 1}, memory.data(), nullptr}, nullptr).ok());
}

}  // namespace
}  // namespace sirtaki::device
