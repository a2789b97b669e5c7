// Whether an array on a CUDA device holds a NaN or an infinity: kernels/finite/finite.h.
//
// For: the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_launch.h"
#include "runtime/base/dtype.h"

namespace sirtaki::kernels::cuda {

struct Finite {
  DType dtype;
  const std::byte* data;  // begins at a multiple of the size of its elements
  std::int64_t n;
  std::uint32_t* not_finite;  // becomes 1 where there is one, else 0; of integers and bool 0
};
Launch all_finite(const Finite& args, Stream stream);
Launch load_finite();

}  // namespace sirtaki::kernels::cuda
