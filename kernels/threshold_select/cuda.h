// Threshold selection on a CUDA device: kernels/threshold_select/threshold_select.h.
//
// For: the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
// Method: tiles count what reaches the threshold, a scan tells each where its entries begin, and a second pass writes
// them. Beyond the capacity a radix selection finds a larger threshold; nobody waits for the host to learn of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_launch.h"
#include "kernels/threshold_select/threshold_select.h"

namespace sirtaki::kernels::cuda {

struct ThresholdEncode {
  ThresholdSelect how;
  std::int64_t n;  // < 2^31
  Feedback arrays;
  std::byte* payload;  // room for threshold_max_bytes()
  Selected* selected;  // one
  std::byte* scratch;  // threshold_scratch_bytes(), from a multiple of 8 bytes on
};
std::size_t threshold_scratch_bytes(std::int64_t n);
Launch threshold_select(const ThresholdEncode& args, Stream stream);
Launch load_threshold_select();

}  // namespace sirtaki::kernels::cuda
