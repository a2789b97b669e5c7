// DeviceCompressor: gradients of one stream that are encoded on the GPU they are on, and what this rank has_residual of
// them there.
//
// Payloads travel through the host's memory, as those of the CPU do: a few percent of what the tensor would be.
// Residuals stay on the device; whoever asks for them gets copies. Owned by GradientStream; loop thread. Kernels and
// copies are given to the transport's stream for copies, which is all that orders the uses of memory. Not for: what the
// program sees of a tensor (staged_stream.h), codecs that remember more than a residual (compression/device_coding.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/task.h"
#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/reduction/reduction.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

class DeviceCompressor {
 public:
  // `tensors`: of the stream. Takes memory for what is residual of those that are encoded with feedback. `nccl`:
  // needed where the ranks of a host sum up first, else it may be null. Both outlive it.
  static Result<std::unique_ptr<DeviceCompressor>> create(DeviceTransport& transport, net::DeviceCollectives* nccl,
                                                          const std::vector<scheduler::PlannedTensor>& tensors);

  // Whether a tensor that travels so, among so many ranks, can be encoded on a device.
  static bool supports(const scheduler::PlannedTensor& tensor, int ranks);

  // The gradient is there and is about to be encoded. Once a step, before any part of it is; an error is one of the
  // device.
  Status claim_residual(int tensor, const compression::Ownership& ownership, const TensorView& gradient);
  // Of a partition whose slices are on the device.
  std::shared_ptr<Reduction> reduce(const scheduler::Partition& partition, ReductionSpec spec, ReductionDeps deps,
                                    StageNote note);

  // ---- what is residual; between two steps ----

  // For each of these tensors of which anything may be residual `each`, with all its elements, then `done`, which comes
  // later and with an error where the host has no memory for a tensor, or the job is over. One tensor after the other.
  void read_residuals(std::vector<int> tensors, MoveFunction<void(int tensor, ConstBytes residual)> each, Done done);
  // Whether what is residual of it can be added to its next gradient.
  bool supports_residual(int tensor) const { return residuals_[static_cast<std::size_t>(tensor)].memory != nullptr; }
  // Of one that takes it. An error is one of the device.
  Status restore_residual(int tensor, std::span<const float> in);
  void clear_residual(int tensor) { residuals_[static_cast<std::size_t>(tensor)].any = false; }

 private:
  struct Residual {
    std::shared_ptr<std::byte> memory;  // null: it is not encoded, or without feedback
    std::size_t bytes = 0;
    bool any = false;      // else whatever is in the memory means zeros
    bool foreign = false;  // there may be something where another rank of the host encodes
  };
  struct Reading;

  DeviceCompressor(DeviceTransport& transport, net::DeviceCollectives* nccl) : transport_(transport), nccl_(nccl) {}
  Result<std::byte*> residual(int tensor);
  Result<std::vector<std::byte*>> residuals_of(const scheduler::Partition& partition);
  static void read_next(std::shared_ptr<Reading> reading);

  DeviceTransport& transport_;
  net::DeviceCollectives* const nccl_;
  std::vector<Residual> residuals_;  // by tensor
};

}  // namespace sirtaki::engine
