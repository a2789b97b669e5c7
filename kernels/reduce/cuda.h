// Reductions on a CUDA device, with the division of an average; see kernels/reduce/reduce.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda_launch.h"
#include "runtime/base/dtype.h"
#include "runtime/base/tensor.h"

namespace sirtaki::kernels::cuda {

struct Reduce {
  ReduceOp op;  // kAverage computes average(); not defined for bool
  DType dtype;
  std::span<const std::byte* const> sources;  // 1 to kMostPayloads; the span is on the host
  std::byte* out;  // may be one of the sources; all are aligned to the size of their elements
  std::int64_t n;
  std::int64_t divisor = 1;  // used by kAverage, at least 1
};
Launch reduce(const Reduce& args, Stream stream);
Launch load_reduce();

}  // namespace sirtaki::kernels::cuda
