#include "kernels/scaled_cast/scaled_cast.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/device/machine.h"

namespace sirtaki::device {
namespace {

using kernels::Random;
using kernels::ScaledCast;
using kernels::ScaledCode;

ScaledCast random_cast(std::uint64_t seed, Random& random) {
  static const std::vector<std::int32_t> kBlocks = {256, 1024, 64, 1, 2048, 5000, 65536};
  const std::int32_t block =
      random() % 2 == 0 ? kernels::pick(kBlocks, random) : 1 + static_cast<std::int32_t>(random() % 1500);
  return {static_cast<ScaledCode>(seed % 3), block};
}

std::size_t random_scaled_length(std::uint64_t seed, Random& random) {
  return seed % 5 == 0 ? random() % 4 : random() % std::min<std::size_t>(9000, most_elements());
}

std::string words(const ScaledCast& how, std::size_t n, std::uint64_t seed) {
  return "code " + std::to_string(static_cast<int>(how.code)) + " block " + std::to_string(how.block) + " n " +
         std::to_string(n) + " seed " + std::to_string(seed);
}

void expect_same_payload(const ScaledCast& how, Gradient& gradient, std::size_t shift) {
  Memory payload(kernels::scaled_bytes(how, gradient.n()), shift);
  Memory flag(sizeof(std::uint32_t));
  std::vector<std::byte> expected(payload.size());
  const bool finite = kernels::ref::scaled_encode(how, gradient.n(), gradient.host(), expected.data());
  const auto arrays = gradient.device();
  const kernels::cuda::ScaledEncode args{how, gradient.n(), arrays, payload.data(),
                                         reinterpret_cast<std::uint32_t*>(flag.data())};
  ASSERT_TRUE(device::kernels().scaled_encode(args, nullptr).ok());
  EXPECT_EQ(Gradient::first_difference(expected, payload.copy()), "");
  EXPECT_EQ(flag.value<std::uint32_t>(), finite ? 0U : 1U);
  gradient.expect_same_left();
}

TEST(ScaledCastOnDevice, WritesTheBytesOfTheReference) {
  for (std::uint64_t seed = 0; seed < 90; ++seed) {
    Random random(seed);
    const ScaledCast how = random_cast(seed, random);
    const std::size_t n = random_scaled_length(seed, random);
    SCOPED_TRACE(words(how, n, seed));
    set_order(static_cast<int>(seed) % orders());
    Gradient gradient(n, kernels::kShapes[seed / 3 % 6], seed % 4 != 0, random);
    expect_same_payload(how, gradient, random() % 4);
  }
}

TEST(ScaledCastOnDevice, WritesTheBytesOfTheReferenceForManyBlocks) {
  for (const ScaledCast& how : {ScaledCast{ScaledCode::kInt8, 256}, ScaledCast{ScaledCode::kE4M3, 1000}}) {
    Random random(3);
    const std::size_t n = most_elements() - 1;
    SCOPED_TRACE(words(how, n, 3));
    Gradient gradient(n, kernels::Shape::kNormal, true, random);
    expect_same_payload(how, gradient, 0);
  }
}

TEST(ScaledCastOnDevice, AddsAsTheReferenceDoes) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    const ScaledCast how = random_cast(seed, random);
    const std::size_t n = random_scaled_length(seed, random);
    SCOPED_TRACE(words(how, n, seed));
    const auto elements = static_cast<std::int64_t>(n);
    std::vector<std::vector<std::byte>> payloads;
    std::vector<const std::byte*> host;
    std::vector<std::unique_ptr<Memory>> copies;
    std::vector<const std::byte*> there;
    for (std::size_t r = 0; r < seed % 4; ++r) {
      const kernels::Array gradient = kernels::gradient_array(n, kernels::kShapes[(seed + r) % 6], random);
      payloads.emplace_back(kernels::scaled_bytes(how, elements));
      kernels::scaled_encode(how, elements, {gradient.data()}, payloads.back().data());
    }
    for (const std::vector<std::byte>& payload : payloads) {
      host.push_back(payload.data());
      copies.push_back(std::make_unique<Memory>(payload, random() % 4));
      there.push_back(copies.back()->data());
    }
    Memory out(n * sizeof(float), 4 * (random() % 4));
    std::vector<std::byte> expected(out.size());
    kernels::ref::scaled_sum(how, elements, host, expected.data());
    const auto divisor = static_cast<std::int64_t>(1 + seed % 5);
    divide(expected, divisor);
    ASSERT_TRUE(device::kernels().scaled_sum({how, elements, there, out.data(), divisor}, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, out.copy()), "");
  }
}

TEST(ScaledCastOnDevice, RefusesBlocksThatDoNotExist) {
  Memory memory(256);
  const auto sum = [&](const ScaledCast& how) {
    return device::kernels().scaled_sum({how, 4, {}, memory.data()}, nullptr).ok();
  };
  EXPECT_TRUE(sum({ScaledCode::kInt8, 256}));
  EXPECT_FALSE(sum({ScaledCode::kInt8, 0}));
  EXPECT_FALSE(sum({ScaledCode::kInt8, 65537}));
  EXPECT_FALSE(sum({static_cast<ScaledCode>(3), 256}));
  const ScaledCast how{ScaledCode::kInt8, 256};
  EXPECT_FALSE(device::kernels().scaled_sum({how, 4, {}, memory.data(), 0}, nullptr).ok());
  EXPECT_FALSE(device::kernels().scaled_sum({how, std::int64_t{1} << 48, {}, memory.data()}, nullptr).ok());
}

}  // namespace
}  // namespace sirtaki::device
