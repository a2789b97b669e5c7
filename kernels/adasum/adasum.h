// Adasum: arrays of several ranks combined by the angles between them: orthogonal ones add, parallel ones average.
//
// Two arrays a and b make (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b; more are combined in pairs of halves, the
// first half the larger, until one is left. As every step is linear in the arrays, the result is a weighted sum of them
// whose weights follow from their dot products alone, so ranks that hold a block each need to add up nothing but those.
// Method: Maleki et al., Scaling Distributed Training with Adaptive Summation, 2020.
// For: reductions of whole tensors. Only float16, bfloat16, float32, float64; memory may be unaligned. Threads: pure
// functions. Not for: the exchange between ranks (runtime/engine/ops/named_ops_adasum.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

// Of `count` arrays with each other and themselves: array i with array j <= i is number i * (i + 1) / 2 + j.
constexpr std::size_t dot_product_count(std::size_t count) {
  return count * (count + 1) / 2;
}

// Adds the dot products of n elements of each array to `sums`, in float64.
void add_dot_products(DType dtype, std::span<const std::byte* const> arrays, std::int64_t n, std::span<double> sums);

// The weight of each of `count` arrays in their Adasum. An array of zeros changes nothing; an infinity or a NaN
// reaches the result.
std::vector<double> adasum_weights(std::span<const double> sums, std::size_t count);

// out[i] = the sum of weights[k] * arrays[k][i] for n elements, computed in float64; `out` may be one of the arrays.
void weighted_sum(DType dtype, std::span<const std::byte* const> arrays, std::span<const double> weights,
                  std::byte* out, std::int64_t n);

}  // namespace sirtaki::kernels
