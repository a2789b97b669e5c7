// Momentum correction on a CUDA device; see kernels/momentum_correction/momentum_correction.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_launch.h"
#include "kernels/momentum_correction/momentum_correction.h"

namespace sirtaki::kernels::cuda {

struct MomentumCorrect {
  Momentum how;
  std::int64_t n;
  const std::byte* gradient;
  std::byte* momentum;
  std::byte* step;  // may be `gradient`; without Nesterov also `momentum`
};
Launch momentum_correct(const MomentumCorrect& args, Stream stream);
Launch load_momentum_correction();

}  // namespace sirtaki::kernels::cuda
