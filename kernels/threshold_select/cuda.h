// Threshold selection on a CUDA device; see kernels/threshold_select/threshold_select.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
// Method: tiles count the elements that reach the threshold, a scan finds the first entry of each tile, and a second
// pass writes the entries. Beyond the capacity, a radix selection finds a larger threshold on the device, without a
// round trip to the host.
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
  std::byte* payload;  // threshold_max_bytes() bytes
  Selected* selected;  // a single result
  std::byte* scratch;  // threshold_scratch_bytes() bytes, aligned to 8
};
std::size_t threshold_scratch_bytes(std::int64_t n);
Launch threshold_select(const ThresholdEncode& args, Stream stream);
Launch load_threshold_select();

}  // namespace sirtaki::kernels::cuda
