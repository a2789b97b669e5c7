// Casts to 8 bits with scales on a CUDA device; see kernels/scaled_cast/scaled_cast.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
// Method: a warp holds a block of up to 1024 elements in registers and finds its scale there; larger blocks are read
// twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda_launch.h"
#include "kernels/scaled_cast/scaled_cast.h"

namespace sirtaki::kernels::cuda {

struct ScaledEncode {
  ScaledCast how;
  std::int64_t n;
  Feedback arrays;
  std::byte* payload;         // may be unaligned
  std::uint32_t* not_finite;  // becomes 1 if a block is not finite, else 0
};
Launch scaled_encode(const ScaledEncode& args, Stream stream);

struct ScaledSum {
  ScaledCast how;
  std::int64_t n;
  std::span<const std::byte* const> payloads;  // at most kMostPayloads; the span is on the host; may be unaligned
  std::byte* out;
  std::int64_t divisor = 1;  // the sums are divided by it, as average() divides
};
Launch scaled_sum(const ScaledSum& args, Stream stream);
Launch load_scaled_cast();

}  // namespace sirtaki::kernels::cuda
