// Sums of sparse payloads on a CUDA device; see kernels/sparse_sum/sparse_sum.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
// Payloads must be valid (sparse_valid()), since their counts determine the memory that is read.
// Method: a block owns a tile and adds the payloads one after the other in shared memory, which keeps the order of the
// ranks without atomics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda_launch.h"
#include "kernels/sparse_sum/sparse_sum.h"

namespace sirtaki::kernels::cuda {

// Each payload begins with the number of its entries, 32 bits, and is aligned to 2 bytes.
struct SparseSum {
  DType value;
  std::int64_t n;
  std::span<const std::byte* const> payloads;  // at most kMostPayloads; the span itself is on the host
  std::byte* out;
  std::uint32_t* firsts;     // scratch memory: sparse_scratch_bytes() bytes
  std::int64_t divisor = 1;  // the sums are divided by it, as average() divides
};
constexpr std::size_t sparse_scratch_bytes(std::int64_t n, std::size_t payloads) {
  return static_cast<std::size_t>((n + kSparseTile - 1) / kSparseTile) * payloads * sizeof(std::uint32_t);
}
Launch sparse_sum(const SparseSum& args, Stream stream);
Launch load_sparse_sum();

}  // namespace sirtaki::kernels::cuda
