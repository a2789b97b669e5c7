// Casts between float32 and halves on a CUDA device; see kernels/cast/cast.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h. float64 is not
// supported.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_launch.h"
#include "runtime/base/dtype.h"

namespace sirtaki::kernels::cuda {

struct Cast {
  DType from;
  const std::byte* in;  // aligned to the size of its elements, like `out`
  DType to;             // float32 if `from` is float16 or bfloat16, one of these if it is float32
  std::byte* out;       // does not overlap `in`
  std::int64_t n;
};
Launch cast(const Cast& args, Stream stream);
Launch load_cast();

}  // namespace sirtaki::kernels::cuda
