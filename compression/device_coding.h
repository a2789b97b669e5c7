// DeviceCoding: the encoding of a coder as kernels that are queued on a GPU.
//
// Used by reductions of gradients on a GPU. Owned by its Coder, whose state it shares, so that payloads equal those of
// the Coder byte for byte. Threads: one at a time, with the Coder. Never waits or allocates. Payloads from a network
// are checked on the host, where they arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compression/coder.h"
#include "kernels/cuda_kernels.h"

namespace sirtaki::compression {

// The kernels and the stream they are queued on. Device memory below is aligned to 4 bytes, as the arrays of a Feedback
// are.
struct DeviceQueue {
  const kernels::cuda::Kernels& kernels;
  kernels::cuda::Stream stream;
};

// Payloads to sum; the span itself is on the host.
struct DeviceSum {
  std::span<const std::byte* const> payloads;  // at most kernels::cuda::kMostPayloads
  std::byte* out;
  std::int64_t divisor = 1;  // the sums are divided by it
};

class DeviceCoding {
 public:
  DeviceCoding() = default;
  DeviceCoding(const DeviceCoding&) = delete;
  DeviceCoding& operator=(const DeviceCoding&) = delete;
  virtual ~DeviceCoding() = default;

  // Queues Coder::encode(), here also for numbers that are not finite. `not_finite` becomes 1 if such a number makes
  // the payload useless, else 0; it is on the device, like all memory here.
  virtual kernels::cuda::Launch encode(const DeviceQueue& queue, const Piece& piece, const kernels::Feedback& arrays,
                                       std::byte* payload, std::uint32_t* not_finite) const = 0;

  // Queues Coder::sum(), and the division of an average.
  virtual kernels::cuda::Launch sum(const DeviceQueue& queue, const Piece& piece, const DeviceSum& sum) const = 0;
};

}  // namespace sirtaki::compression
