// Casts between float32 and halves on a CUDA device: kernels/cast/cast.h.
//
// For: the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h. Not for: float64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_launch.h"
#include "runtime/base/dtype.h"

namespace sirtaki::kernels::cuda {

struct Cast {
  DType from;
  const std::byte* in;  // begins at a multiple of the size of its elements, as does `out`
  DType to;             // float32 where `from` is float16 or bfloat16, one of these where it is float32
  std::byte* out;       // does not overlap `in`
  std::int64_t n;
};
Launch cast(const Cast& args, Stream stream);
Launch load_cast();

}  // namespace sirtaki::kernels::cuda
