// Detection of NaN and infinity in an array on a CUDA device; see kernels/finite/finite.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_launch.h"
#include "runtime/base/dtype.h"

namespace sirtaki::kernels::cuda {

struct Finite {
  DType dtype;
  const std::byte* data;  // aligned to the size of its elements
  std::int64_t n;
  std::uint32_t* not_finite;  // becomes 1 if an element is NaN or infinite, else 0; 0 for integers and bool
};
Launch all_finite(const Finite& args, Stream stream);
Launch load_finite();

}  // namespace sirtaki::kernels::cuda
