// Adasum combines arrays of several ranks by the angles between them: orthogonal arrays are summed, parallel ones
// averaged.
//
// Two arrays a and b combine to (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b; more arrays are combined in pairs of
// halves, the first half the larger, until one is left. Every step is linear in the arrays, so the result is a weighted
// sum whose weights follow from the dot products alone. Ranks that hold one block each therefore exchange only partial
// dot products.
// Method: Maleki et al., Scaling Distributed Training with Adaptive Summation, 2020.
// Used by reductions of whole tensors. Supports float16, bfloat16, float32 and float64; memory may be unaligned.
// Threads: pure functions. The exchange between ranks is elsewhere (runtime/engine/ops/named_ops_adasum.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

// Returns the number of dot products of `count` arrays with each other and themselves; arrays i and j <= i have number
// i * (i + 1) / 2 + j.
constexpr std::size_t dot_product_count(std::size_t count) {
  return count * (count + 1) / 2;
}

// Adds the dot products of n elements of each array to `sums`, in float64.
void add_dot_products(DType dtype, std::span<const std::byte* const> arrays, std::int64_t n, std::span<double> sums);

// Returns the weight of each of `count` arrays in their Adasum. An array of zeros does not affect the others; an
// infinity or a NaN reaches the result.
std::vector<double> adasum_weights(std::span<const double> sums, std::size_t count);

// Writes out[i] = the sum of weights[k] * arrays[k][i] for n elements, computed in float64; `out` may be one of the
// arrays.
void weighted_sum(DType dtype, std::span<const std::byte* const> arrays, std::span<const double> weights,
                  std::byte* out, std::int64_t n);

}  // namespace sirtaki::kernels
