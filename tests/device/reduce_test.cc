#include "kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <memory>

#include "kernels/scale/scale.h"
#include "tests/device/machine.h"

namespace sirtaki::device {
namespace {

using kernels::Array;
using kernels::Random;

TEST(ReduceOnDevice, IsTheReference) {
  for (std::uint64_t seed = 0; seed < 220; ++seed) {
    Random random(seed);
    const DType dtype = kernels::all_dtypes()[seed % kDTypeCount];
    const auto op = static_cast<ReduceOp>(seed / kDTypeCount % kElementwiseOpCount);
    const std::size_t n = seed % 7 == 0 ? random() % 9 : random() % 1500;
    const std::size_t count = seed % 3 == 0 ? 1 + random() % 2 : 1 + random() % 9;
    if (op == ReduceOp::kAverage && dtype == DType::kBool) {
      continue;
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(count) + " of " + std::to_string(n));
    std::vector<Array> arrays;
    std::vector<std::unique_ptr<Memory>> memories;
    std::vector<const std::byte*> sources;
    std::vector<const std::byte*> device_sources;
    for (std::size_t s = 0; s < count; ++s) {
      arrays.emplace_back(n * dtype_size(dtype), 0);
      kernels::fill(dtype, arrays.back(), random);
      const std::size_t shift = seed % 4 < 2 ? 0 : random() % 4;
      memories.push_back(std::make_unique<Memory>(arrays.back(), dtype_size(dtype) * shift));
      device_sources.push_back(memories.back()->data());
    }
    for (const Array& array : arrays) {
      sources.push_back(array.data());
    }
    const std::int64_t divisor = 1 + static_cast<std::int64_t>(random() % 5);
    std::vector<std::byte> expected(n * dtype_size(dtype));
    if (op == ReduceOp::kAverage) {
      kernels::ref::average(dtype, sources, expected.data(), static_cast<std::int64_t>(n),
                            static_cast<double>(divisor));
    } else {
      kernels::ref::reduce(op, dtype, sources, expected.data(), static_cast<std::int64_t>(n));
    }
    Memory own(expected.size());
    Memory& out = seed % 2 == 0 ? own : *memories[random() % count];
    const kernels::cuda::Reduce args{op, dtype, device_sources, out.data(), static_cast<std::int64_t>(n), divisor};
    ASSERT_TRUE(device::kernels().reduce(args, nullptr).ok());
    EXPECT_EQ(Gradient::first_difference(expected, out.copy()), "");
  }
}

TEST(ReduceOnDevice, RefusesWhatItCannotDo) {
  Memory memory(64);
  const std::vector<const std::byte*> one{memory.data()};
  const std::vector<const std::byte*> many(kernels::cuda::kMostPayloads + 1, memory.data());
  const std::vector<const std::byte*> odd{memory.data() + 1};
  const auto reduce = [&](std::span<const std::byte* const> sources, DType dtype, ReduceOp op, std::int64_t divisor) {
    return device::kernels().reduce({op, dtype, sources, memory.data(), 2, divisor}, nullptr).ok();
  };
  EXPECT_TRUE(reduce(one, DType::kF32, ReduceOp::kAverage, 2));
  EXPECT_FALSE(reduce({}, DType::kF32, ReduceOp::kSum, 1));
  EXPECT_FALSE(reduce(many, DType::kF32, ReduceOp::kSum, 1));
  EXPECT_FALSE(reduce(odd, DType::kF32, ReduceOp::kSum, 1));
  EXPECT_FALSE(reduce(one, DType::kF32, ReduceOp::kAverage, 0));
  EXPECT_FALSE(reduce(one, DType::kBool, ReduceOp::kAverage, 2));
}

}  // namespace
}  // namespace sirtaki::device
