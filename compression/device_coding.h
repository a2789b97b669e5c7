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
  std::byte* scratch;        // scratch_bytes(), aligned to 8 bytes
  std::int64_t divisor = 1;  // the sums are divided by it
};

// The note of an encoding for the host, which a kernel writes on the device.
struct DeviceNote {
  std::uint32_t not_finite;  // 1: a number that is not finite makes the payload useless; else 0
  std::uint32_t own[3];      // for encoded()
};

// Device memory of the encoding of a piece.
struct DeviceOutput {
  std::byte* payload;
  DeviceNote* note;
  std::byte* scratch;      // scratch_bytes(), aligned to 8 bytes
  const std::byte* whole;  // null, or memory that begin() has filled in this step
};

class DeviceCoding {
 public:
  DeviceCoding() = default;
  DeviceCoding(const DeviceCoding&) = delete;
  DeviceCoding& operator=(const DeviceCoding&) = delete;
  virtual ~DeviceCoding() = default;

  // Returns the size of the memory, aligned to 8 bytes, that begin() fills for the encodings of a step; 0 unless
  // Coder::wants_whole().
  virtual std::size_t whole_bytes() const { return 0; }
  // Queues Coder::begin(), here also for numbers that are not finite. Call it if whole_bytes() is not 0, where
  // Coder::begin() would be called.
  virtual kernels::cuda::Launch begin(const DeviceQueue& /*queue*/, const kernels::Feedback& /*whole*/,
                                      std::byte* /*memory*/) const {
    return {};
  }

  // Returns the size of the scratch memory of encode(), and of sum() of that many payloads.
  virtual std::size_t scratch_bytes(std::int64_t /*numel*/, std::size_t /*payloads*/) const { return 0; }
  // Queues Coder::encode(), here also for numbers that are not finite.
  virtual kernels::cuda::Launch encode(const DeviceQueue& queue, const Piece& piece, const kernels::Feedback& arrays,
                                       const DeviceOutput& out) const = 0;
  // Updates the state of the coder with the note of its last encode(), if that found no such number.
  virtual void encoded(const DeviceNote& /*note*/) {}

  // Queues Coder::sum(), and the division of an average.
  virtual kernels::cuda::Launch sum(const DeviceQueue& queue, const Piece& piece, const DeviceSum& sum) const = 0;
};

}  // namespace sirtaki::compression
