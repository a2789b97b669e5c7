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

struct SparseSum {
  DType value;
  std::int64_t n;
  std::span<const SparsePayload> payloads;  // at most kMostPayloads; the span is on the host
  std::byte* out;
  std::uint32_t* firsts;  // scratch memory: one word per tile and payload
};
Launch sparse_sum(const SparseSum& args, Stream stream);
Launch load_sparse_sum();

}  // namespace sirtaki::kernels::cuda
