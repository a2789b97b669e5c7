#include "kernels/adasum/adasum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cast/cast.h"

namespace sirtaki::kernels {
namespace {

using Doubles = std::vector<double>;

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

// Follows the definition, array by array.
Doubles reference(const std::vector<Doubles>& arrays, std::size_t begin, std::size_t end) {
  if (end - begin == 1) {
    return arrays[begin];
  }
  const std::size_t middle = begin + (end - begin + 1) / 2;
  const Doubles a = reference(arrays, begin, middle);
  const Doubles b = reference(arrays, middle, end);
  const double left = dot(a, a) == 0 ? 1 : 1 - dot(a, b) / (2 * dot(a, a));
  const double right = dot(b, b) == 0 ? 1 : 1 - dot(a, b) / (2 * dot(b, b));
  Doubles out(a.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = left * a[i] + right * b[i];
  }
  return out;
}

Doubles combined(const std::vector<Doubles>& arrays) {
  std::vector<const std::byte*> memory;
  for (const Doubles& array : arrays) {
    memory.push_back(reinterpret_cast<const std::byte*>(array.data()));
  }
  std::vector<double> sums(dot_product_count(arrays.size()));
  const auto n = static_cast<std::int64_t>(arrays.front().size());
  add_dot_products(DType::kF64, memory, n, sums);
  Doubles out(arrays.front().size());
  weighted_sum(DType::kF64, memory, adasum_weights(sums, arrays.size()), reinterpret_cast<std::byte*>(out.data()), n);
  return out;
}

std::vector<Doubles> drawn(std::size_t count, std::size_t n, std::mt19937_64& random) {
  std::normal_distribution<double> draw;
  std::vector<Doubles> arrays(count, Doubles(n));
  const Doubles common = [&] {
    Doubles made(n);
    for (double& value : made) {
      value = draw(random);
    }
    return made;
  }();
  for (Doubles& array : arrays) {
    for (std::size_t i = 0; i < n; ++i) {
      array[i] = common[i] + draw(random);
    }
  }
  return arrays;
}

TEST(Adasum, IsTheDefinitionForAnyNumberOfArrays) {
  std::mt19937_64 random(3);
  for (std::size_t count = 1; count <= 9; ++count) {
    for (const std::size_t n : {0, 1, 7, 512, 1500}) {
      std::vector<Doubles> arrays = drawn(count, n, random);
      if (n == 7) {
        arrays.back().assign(n, 0.0);
      }
      const Doubles expected = reference(arrays, 0, count);
      const Doubles found = combined(arrays);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(found[i], expected[i], 1e-10) << count << " arrays of " << n;
      }
    }
  }
}

TEST(Adasum, OrthogonalArraysAddAndEqualOnesAverage) {
  EXPECT_EQ(combined({{1, 0}, {0, 2}}), (Doubles{1, 2}));
  EXPECT_EQ(combined({{1, 3}, {1, 3}, {1, 3}, {1, 3}}), (Doubles{1, 3}));
  EXPECT_EQ(combined({{0, 0}, {0, 0}}), (Doubles{0, 0}));
}

// Opposite arrays cancel; rounding errors of their sum must not influence the others.
TEST(Adasum, WhatCancelsOutCountsAsZeros) {
  std::mt19937_64 random(5);
  for (int draw = 0; draw < 50; ++draw) {
    std::vector<Doubles> arrays = drawn(3, 40, random);
    for (std::size_t i = 0; i < 40; ++i) {
      arrays[1][i] = -arrays[0][i];
    }
    const Doubles found = combined(arrays);
    for (std::size_t i = 0; i < 40; ++i) {
      ASSERT_NEAR(found[i], arrays[2][i], 1e-10);
    }
  }
}

TEST(Adasum, HalvesAndFloatsAreComputedInFloat64) {
  std::mt19937_64 random(7);
  const std::vector<Doubles> exact = drawn(3, 700, random);
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<Doubles> rounded(3, Doubles(700));
    std::vector<const std::byte*> arrays;
    for (std::size_t k = 0; k < 3; ++k) {
      std::vector<float> narrow(exact[k].begin(), exact[k].end());
      std::vector<std::byte>& bytes = memory.emplace_back(700 * dtype_size(dtype));
      if (dtype == DType::kF32) {
        std::memcpy(bytes.data(), narrow.data(), bytes.size());
      } else {
        cast(DType::kF32, reinterpret_cast<const std::byte*>(narrow.data()), dtype, bytes.data(), 700);
        cast(dtype, bytes.data(), DType::kF32, reinterpret_cast<std::byte*>(narrow.data()), 700);
      }
      rounded[k].assign(narrow.begin(), narrow.end());
      arrays.push_back(bytes.data());
    }
    std::vector<double> sums(dot_product_count(3));
    add_dot_products(dtype, arrays, 700, sums);
    EXPECT_NEAR(sums[1], dot(rounded[1], rounded[0]), 1e-9);
    weighted_sum(dtype, arrays, adasum_weights(sums, 3), memory[0].data(), 700);
    const Doubles expected = reference(rounded, 0, 3);
    std::vector<float> found(700);
    if (dtype == DType::kF32) {
      std::memcpy(found.data(), memory[0].data(), memory[0].size());
    } else {
      cast(dtype, memory[0].data(), DType::kF32, reinterpret_cast<std::byte*>(found.data()), 700);
    }
    const double step = dtype == DType::kF32 ? 0x1p-23 : dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
    for (std::size_t i = 0; i < 700; ++i) {
      ASSERT_NEAR(found[i], expected[i], step * (1 + std::abs(expected[i]))) << dtype_name(dtype);
    }
  }
}

TEST(Adasum, AnInfinityReachesTheResult) {
  const Doubles found = combined({{1, std::numeric_limits<double>::infinity()}, {1, 1}});
  EXPECT_FALSE(std::isfinite(found[1]));
}

}  // namespace
}  // namespace sirtaki::kernels
