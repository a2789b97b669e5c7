// Sparse payloads: some elements of an array, and the sum of several such payloads in the order of the ranks.
//
// For: kernels and codecs that send a number of elements not known beforehand. Threads: pure functions; no allocation.
// Arrays hold float32; all memory may be unaligned. Not for: payloads of equal groups (kernels/group_topk/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

// An array is cut into tiles, whose sums stay in the nearest cache.
inline constexpr std::int64_t kSparseTile = 4096;

// A payload of `entries` out of n elements, n >= 0, entries <= n: for each tile how many entries it has, 16 bits; then
// the values of all entries; then their offsets in their tiles, 16 bits; little-endian, in the order of the elements.
// Values are float32, float16 or bfloat16.
struct SparsePayload {
  const std::byte* data;
  std::int64_t entries;
};
std::size_t sparse_bytes(DType value, std::int64_t n, std::int64_t entries);

// Whether these bytes can be a payload of n elements with that many entries: the tiles' counts add up to it, offsets
// ascend within each tile and stay inside it.
bool sparse_valid(DType value, std::int64_t n, const SparsePayload& payload);

// out[i] = the sum of what the payloads hold for element i, in their order, +0 where they hold nothing. The payloads
// are valid; none is needed. A NaN that comes out is always the same one.
void sparse_sum(DType value, std::int64_t n, std::span<const SparsePayload> payloads, std::byte* out);

// data[i] = +0 for each element that the payload, a valid one, holds: what masks a momentum.
void sparse_clear(DType value, std::int64_t n, const SparsePayload& payload, std::byte* data);

namespace ref {

// The meaning of sparse_sum(), by way of dense arrays; allocates.
void sparse_sum(DType value, std::int64_t n, std::span<const SparsePayload> payloads, std::byte* out);

}  // namespace ref
}  // namespace sirtaki::kernels
