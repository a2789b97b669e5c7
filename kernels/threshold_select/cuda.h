// Threshold selection on a CUDA device; see kernels/threshold_select/threshold_select.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
// Method: tiles count the elements that reach the threshold, a scan finds the first entry of each tile, and a second
// pass writes the entries. A radix selection finds a threshold by its rank, and a larger one beyond the capacity, on
// the device, without a round trip to the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_launch.h"
#include "kernels/sparse_sum/sparse_sum.h"
#include "kernels/threshold_select/threshold_select.h"

namespace sirtaki::kernels::cuda {

// The result of a selection, for the host.
struct ThresholdFound {
  std::uint32_t not_finite;  // 1 if a number sent is not finite, else 0
  std::uint32_t wanted;      // elements that reach the threshold
  float threshold;           // the one that was used; 0: all elements that are not zero reach it
  std::uint32_t exact;       // 1 if it is the magnitude of a rank, else 0
};

// Payload: the number of its entries, 32 bits, then a sparse payload (kernels/sparse_sum/), then zeros.
struct ThresholdEncode {
  ThresholdSelect how;  // its threshold is not used if `rank` is not 0
  // If not 0, the threshold is found first: the magnitude of this rank, the largest being 1.
  std::int64_t rank;
  std::int64_t n;  // <= 2^31
  Feedback arrays;
  std::byte* payload;
  std::size_t payload_bytes;  // at least 4 + threshold_max_bytes()
  ThresholdFound* found;
  std::byte* scratch;  // threshold_scratch_bytes() bytes, aligned to 8
};
inline constexpr std::size_t kThresholdState = 8208;
inline constexpr std::size_t kThresholdTile = 12;
constexpr std::size_t threshold_scratch_bytes(std::int64_t n) {
  return kThresholdState + static_cast<std::size_t>((n + kSparseTile - 1) / kSparseTile) * kThresholdTile;
}
Launch threshold_select(const ThresholdEncode& args, Stream stream);
Launch load_threshold_select();

}  // namespace sirtaki::kernels::cuda
