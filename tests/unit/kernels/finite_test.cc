#include "kernels/finite/finite.h"

#include <gtest/gtest.h>

#include "runtime/base/check.h"
#include "tests/unit/kernels/arrays.h"

namespace sirtaki::kernels {
namespace {

constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

// Finite numbers of every kind.
Array finite_array(DType dtype, std::size_t n, Random& random) {
  const std::size_t size = dtype_size(dtype);
  Array array(n * size, random());
  for (std::size_t i = 0; i < n; ++i) {
    do {
      const std::uint64_t bits = element_bits(dtype, random);
      std::memcpy(array.data() + i * size, &bits, size);
    } while (!ref::all_finite(dtype, array.data() + i * size, 1));
  }
  return array;
}

std::vector<std::uint64_t> not_finite(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {0x7C00, 0xFC00, 0x7E00, 0xFC01};
    case DType::kBF16:
      return {0x7F80, 0xFF80, 0x7FC0, 0xFF81};
    case DType::kF32:
      return {0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001};
    default:
      return {0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0xFFF0000000000001};
  }
}

TEST(Finite, FindsOneAnywhereOnEveryTarget) {
  on_every_target([](const std::string& target) {
    for (const DType dtype : kFloats) {
      for (std::uint64_t seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(target + " " + std::string(dtype_name(dtype)) + " seed " + std::to_string(seed));
        Random random(seed);
        const std::size_t n = seed < 8 ? seed : random() % (seed % 10 == 0 ? 20000 : 300);
        Array array = finite_array(dtype, n, random);
        const auto count = static_cast<std::int64_t>(n);
        ASSERT_TRUE(all_finite(dtype, array.data(), count));
        if (n > 0) {
          const std::uint64_t bits = pick(not_finite(dtype), random);
          const std::size_t place = random() % 3 == 0 ? n - 1 : random() % n;
          std::memcpy(array.data() + place * dtype_size(dtype), &bits, dtype_size(dtype));
          ASSERT_FALSE(all_finite(dtype, array.data(), count)) << "element " << place << " of " << n;
          ASSERT_FALSE(ref::all_finite(dtype, array.data(), count));
        }
      }
    }
  });
}

TEST(Finite, IsTheReferenceForEveryHalf) {
  on_every_target([](const std::string& target) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      for (std::uint32_t bits = 0; bits < 65536; bits += 7) {
        const auto half = static_cast<std::uint16_t>(bits);
        const auto* data = reinterpret_cast<const std::byte*>(&half);
        ASSERT_EQ(all_finite(dtype, data, 1), ref::all_finite(dtype, data, 1)) << target << " " << bits;
      }
    }
  });
}

TEST(Finite, TakesIntegersAsTheyAre) {
  const std::uint32_t infinity = 0x7F800000;
  const auto* data = reinterpret_cast<const std::byte*>(&infinity);
  EXPECT_TRUE(all_finite(DType::kI32, data, 1));
  EXPECT_FALSE(all_finite(DType::kF32, data, 1));
  EXPECT_TRUE(all_finite(DType::kF32, nullptr, 0));
  EXPECT_THROW(all_finite(DType::kF32, data, -1), BugError);
}

}  // namespace
}  // namespace sirtaki::kernels
