// Sparse payloads: some elements of an array, and the sum of several such payloads in the order of the ranks.
//
// Used by kernels and codecs that send a number of elements not known in advance. Threads: pure functions; no
// allocation. Arrays hold float32; all memory may be unaligned. kernels/group_topk/ has payloads with a fixed number
// per group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

// An array is cut into tiles of this many elements, whose sums stay in the nearest cache.
inline constexpr std::int64_t kSparseTile = 4096;

// A payload of `entries` out of n elements, n >= 0, entries <= n: the number of entries of each tile, 16 bits; then the
// values of all entries; then their offsets in their tiles, 16 bits; little-endian, in the order of the elements.
// Values are float32, float16 or bfloat16.
struct SparsePayload {
  const std::byte* data;
  std::int64_t entries;
};
std::size_t sparse_bytes(DType value, std::int64_t n, std::int64_t entries);

// Returns true if the bytes can be a payload of n elements with that many entries: the counts of the tiles add up to
// it, offsets ascend within each tile and stay inside it.
bool sparse_valid(DType value, std::int64_t n, const SparsePayload& payload);

// Writes the sum of the payloads, in their order, to `out`; +0 where no payload has an entry. The payloads must be
// valid; there may be none. NaN results are canonical.
void sparse_sum(DType value, std::int64_t n, std::span<const SparsePayload> payloads, std::byte* out);

// Sets data[i] = +0 for each element that has an entry in `payload`, a valid one; masks the momentum of sent elements.
void sparse_clear(DType value, std::int64_t n, const SparsePayload& payload, std::byte* data);

}  // namespace sirtaki::kernels
