#include <gtest/gtest.h>

#include "kernels/cast/cast.h"
#include "kernels/finite/finite.h"
#include "kernels/momentum_correction/momentum_correction.h"
#include "kernels/outer_update/outer_update.h"
#include "tests/device/machine.h"

namespace sirtaki::device {
namespace {

using kernels::Array;
using kernels::Random;

Array random_array(DType dtype, std::size_t n, Random& random) {
  Array array(n * dtype_size(dtype), 0);
  kernels::fill(dtype, array, random);
  return array;
}

std::size_t random_length(std::uint64_t seed, Random& random) {
  return seed % 4 == 0 ? random() % 9 : random() % std::min<std::size_t>(5000, most_elements());
}

TEST(CastOnDevice, IsTheReference) {
  const std::vector<std::pair<DType, DType>> kinds = {
      {DType::kF32, DType::kF16}, {DType::kF32, DType::kBF16}, {DType::kF16, DType::kF32}, {DType::kBF16, DType::kF32}};
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const auto [from, to] = kinds[seed % kinds.size()];
    const std::size_t n = seed == 7 ? most_elements() : random_length(seed / 4, random);
    SCOPED_TRACE("seed " + std::to_string(seed) + " n " + std::to_string(n));
    const Array in = random_array(from, n, random);
    Memory device_in(in, dtype_size(from) * (random() % 4));
    Memory out(n * dtype_size(to), dtype_size(to) * (random() % 4));
    std::vector<std::byte> expected(out.size());
    kernels::ref::cast(from, in.data(), to, expected.data(), static_cast<std::int64_t>(n));
    const kernels::cuda::Cast args{from, device_in.data(), to, out.data(), static_cast<std::int64_t>(n)};
    ASSERT_TRUE(device::kernels().cast(args, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, out.copy()), "");
  }
}

TEST(CastOnDevice, KeepsEveryHalf) {
  for (const DType half : {DType::kF16, DType::kBF16}) {
    Array in(65536 * 2, 0);
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      std::memcpy(in.data() + std::size_t{2} * bits, &bits, 2);
    }
    Memory device_in(in);
    Memory out(65536 * sizeof(float));
    std::vector<std::byte> expected(out.size());
    kernels::ref::cast(half, in.data(), DType::kF32, expected.data(), 65536);
    ASSERT_TRUE(device::kernels().cast({half, device_in.data(), DType::kF32, out.data(), 65536}, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, out.copy()), "");
  }
}

TEST(CastOnDevice, RefusesOtherTypes) {
  Memory memory(64);
  const auto cast = [&](DType from, DType to, std::size_t shift) {
    return device::kernels().cast({from, memory.data() + shift, to, memory.data() + 32, 2}, nullptr).ok();
  };
  EXPECT_TRUE(cast(DType::kF16, DType::kF32, 2));
  EXPECT_FALSE(cast(DType::kF16, DType::kF32, 1));
  EXPECT_FALSE(cast(DType::kF64, DType::kF16, 0));
  EXPECT_FALSE(cast(DType::kF32, DType::kF32, 0));
}

TEST(FiniteOnDevice, FindsWhatTheReferenceFinds) {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    Random random(seed);
    const DType dtype = kernels::all_dtypes()[seed % kDTypeCount];
    const std::size_t n = random_length(seed / 8, random);
    SCOPED_TRACE("seed " + std::to_string(seed) + " n " + std::to_string(n));
    Array data(n * dtype_size(dtype), 0);
    std::memset(data.data(), 0x11, data.size());
    if (seed % 3 != 0 && n > 0) {
      // One odd element: with all bits set a NaN, else maybe one or an infinity.
      const std::uint64_t bits = seed % 3 == 1 ? ~std::uint64_t{0} : kernels::element_bits(dtype, random);
      std::memcpy(data.data() + random() % n * dtype_size(dtype), &bits, dtype_size(dtype));
    }
    Memory device_data(data, dtype_size(dtype) * (random() % 4));
    Memory flag(sizeof(std::uint32_t));
    const bool finite = kernels::ref::all_finite(dtype, data.data(), static_cast<std::int64_t>(n));
    const kernels::cuda::Finite args{dtype, device_data.data(), static_cast<std::int64_t>(n),
                                     reinterpret_cast<std::uint32_t*>(flag.data())};
    ASSERT_TRUE(device::kernels().all_finite(args, nullptr).ok());
    EXPECT_EQ(flag.value<std::uint32_t>(), finite ? 0U : 1U);
    found += finite ? 0 : 1;
  }
  EXPECT_GT(found, 3);
}

TEST(MomentumOnDevice, IsTheReference) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const std::size_t n = seed == 5 ? most_elements() - 1 : random_length(seed, random);
    const kernels::Momentum how{0.1F * static_cast<float>(seed % 11), seed % 2 == 0};
    const kernels::Shape shape = kernels::kShapes[seed % 6];
    const Array gradient = kernels::gradient_array(n, shape, random);
    const Array before = kernels::gradient_array(n, shape, random);
    SCOPED_TRACE("seed " + std::to_string(seed) + " n " + std::to_string(n));
    Memory device_gradient(gradient, 4 * (random() % 5));
    Memory device_momentum(before, 4 * (random() % 5));
    Memory device_step(gradient.size());
    std::vector<std::byte> momentum = before.copy();
    std::vector<std::byte> step(gradient.size());
    kernels::ref::momentum_correct(how, kernels::count(gradient), gradient.data(), momentum.data(), step.data());
    // The step has memory of its own, or replaces the gradient or the momentum.
    Memory& target = seed % 3 == 0 ? device_step : seed % 3 == 1 || how.nesterov ? device_gradient : device_momentum;
    const kernels::cuda::MomentumCorrect args{how, kernels::count(gradient), device_gradient.data(),
                                              device_momentum.data(), target.data()};
    ASSERT_TRUE(device::kernels().momentum_correct(args, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(momentum, device_momentum.copy()), "");
    EXPECT_EQ(Gradient::first_difference(step, target.copy()), "");
  }
}

TEST(OuterUpdateOnDevice, IsTheReference) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const std::size_t n = seed == 5 ? most_elements() - 1 : random_length(seed, random);
    const kernels::OuterStep how{0.1F * static_cast<float>(seed % 7), 0.1F * static_cast<float>(seed % 11),
                                 seed % 2 == 0, seed % 4 < 2};
    const kernels::Shape shape = kernels::kShapes[seed % 6];
    const bool with_momentum = seed % 5 != 4;
    SCOPED_TRACE("seed " + std::to_string(seed) + " n " + std::to_string(n));
    std::vector<std::vector<std::byte>> arrays;
    for (int i = 0; i < 3; ++i) {
      arrays.push_back(kernels::gradient_array(n, shape, random).copy());
    }
    Memory anchor(arrays[0], 4 * (random() % 5));
    Memory momentum(arrays[1], 4 * (random() % 5));
    Memory mean(arrays[2], 4 * (random() % 5));
    const auto count = static_cast<std::int64_t>(n);
    kernels::ref::outer_update(how, count, arrays[0].data(), with_momentum ? arrays[1].data() : nullptr,
                               arrays[2].data());
    const kernels::cuda::OuterUpdate args{how, count, anchor.data(), with_momentum ? momentum.data() : nullptr,
                                          mean.data()};
    ASSERT_TRUE(device::kernels().outer_update(args, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(arrays[0], anchor.copy()), "");
    EXPECT_EQ(Gradient::first_difference(arrays[1], momentum.copy()), "");
    EXPECT_EQ(Gradient::first_difference(arrays[2], mean.copy()), "");
  }
}

TEST(OuterUpdateOnDevice, RefusesWhatIsNoFloat) {
  Memory memory(64);
  const auto update = [&](std::int64_t n, std::size_t shift) {
    std::byte* const at = memory.data();
    return device::kernels().outer_update({{}, n, at + shift, at + 16 + shift, at + 32 + shift}, nullptr).ok();
  };
  EXPECT_TRUE(update(2, 4));
  EXPECT_FALSE(update(2, 2));
  EXPECT_FALSE(update(-1, 0));
}

}  // namespace
}  // namespace sirtaki::device
