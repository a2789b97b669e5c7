// Sums of sparse payloads on a CUDA device: kernels/sparse_sum/sparse_sum.h.
//
// For: the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
// Payloads are valid (sparse_valid): their counts say what is read.
// Method: a block owns a tile and adds the payloads one after the other in shared memory, so the order of the ranks
// holds without atomics.
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
  std::uint32_t* firsts;  // scratch memory: a word for every tile of every payload
};
Launch sparse_sum(const SparseSum& args, Stream stream);
Launch load_sparse_sum();

}  // namespace sirtaki::kernels::cuda
