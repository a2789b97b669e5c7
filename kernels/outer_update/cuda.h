// Outer update on a CUDA device; see kernels/outer_update/outer_update.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_launch.h"
#include "kernels/outer_update/outer_update.h"

namespace sirtaki::kernels::cuda {

struct OuterUpdate {
  OuterStep how;
  std::int64_t n;
  std::byte* anchor;
  std::byte* momentum;  // may be nullptr
  std::byte* mean;
};
Launch outer_update(const OuterUpdate& args, Stream stream);
Launch load_outer_update();

}  // namespace sirtaki::kernels::cuda
