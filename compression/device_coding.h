// DeviceCoding: a coder's encoding as kernels that are queued on a GPU.
//
// For: reductions of gradients on a GPU. Owned by: its Coder, whose state it shares, so that payloads are those of the
// Coder byte for byte. Threads: as the Coder. Waits for nothing, allocates nothing. Not for: checking what came over a
// network, which is done where it arrives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compression/coder.h"
#include "kernels/cuda_kernels.h"

namespace sirtaki::compression {

// Where kernels run. Memory of the device below begins at a multiple of 4 bytes, as the arrays of a Feedback do.
struct DeviceQueue {
  const kernels::cuda::Kernels& kernels;
  kernels::cuda::Stream stream;
};

class DeviceCoding {
 public:
  DeviceCoding() = default;
  DeviceCoding(const DeviceCoding&) = delete;
  DeviceCoding& operator=(const DeviceCoding&) = delete;
  virtual ~DeviceCoding() = default;

  // As Coder::encode(), also of numbers that are not finite. `not_finite`: becomes 1 where the payload is of no use for
  // such a number, else 0; on the device, as all memory here.
  virtual kernels::cuda::Launch encode(const DeviceQueue& queue, const Piece& piece, const kernels::Feedback& arrays,
                                       std::byte* payload, std::uint32_t* not_finite) const = 0;

  // As Coder::sum(), of at most kernels::cuda::kMostPayloads; the span itself is on the host.
  virtual kernels::cuda::Launch sum(const DeviceQueue& queue, const Piece& piece,
                                    std::span<const std::byte* const> payloads, std::byte* out) const = 0;
};

}  // namespace sirtaki::compression
