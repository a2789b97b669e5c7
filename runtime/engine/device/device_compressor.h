// DeviceCompressor: compression of the gradients of one stream on their GPU, and their residuals in GPU memory.
//
// Payloads travel through host memory, like payloads of the CPU, because they are a few percent of the tensor.
// Residuals stay on the device; readers get copies. Owner: GradientStream. Thread: loop. Kernels and copies use the
// copy stream of the transport, which alone orders the uses of memory. All other state of codecs is in host memory
// (compression/device_coding.h). Not for the handling of program streams (host_staged_stream.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compression/codec_state.h"
#include "runtime/base/task.h"
#include "runtime/engine/device/device_gather.h"
#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/reduction/reduction.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

class DeviceCompressor {
 public:
  struct Traffic {
    const net::Collectives& net;
    std::int64_t credit_bytes;  // bytes on the wire that are in flight at most
  };
  // Allocates the memory of a stream with this plan: residuals of tensors that use error feedback, and buffers of its
  // reductions. kExhausted if there is too little. `nccl` is required if the ranks of a host sum first, else it may be
  // null. `transport` and `nccl` must outlive the compressor.
  static Result<std::unique_ptr<DeviceCompressor>> create(DeviceTransport& transport, net::DeviceCollectives* nccl,
                                                          const scheduler::Plan& plan, const Traffic& traffic);

  // Returns true if a device can encode this tensor among `ranks` ranks.
  static bool supports(const scheduler::PlannedTensor& tensor, int ranks);

  // Shows a gradient, on the device, to its codec, and adds to it the restored residual of stripes that another rank of
  // the host encodes from now on. Call it once in each step, before any part of the gradient is encoded. An error means
  // that the device failed.
  Status admit(int tensor, compression::CodecState& state, const TensorView& gradient);
  // Returns the reduction of a partition whose slices are on the device.
  std::shared_ptr<Reduction> reduce(const scheduler::Partition& partition, ReductionSpec spec, ReductionDeps deps,
                                    StageNote note);

  // ---- residuals, between two steps ----

  // Calls `each` for each of these tensors whose residual may differ from zero, with all its elements, one tensor after
  // the other; then calls `done`, later, with an error if host memory is exhausted or the job is over.
  void read_residuals(std::vector<int> tensors, MoveFunction<void(int tensor, ConstBytes residual)> each, Done done);
  // Returns true if the tensor keeps a residual on the device.
  bool supports_residual(int tensor) const { return tensors_[static_cast<std::size_t>(tensor)].residual != nullptr; }
  // Replaces the residual. Requires supports_residual(). An error means that the device failed.
  Status restore_residual(int tensor, std::span<const float> in);
  // Resets the residual to zeros.
  void clear_residual(int tensor) { tensors_[static_cast<std::size_t>(tensor)].any = false; }

 private:
  struct Tensor {
    std::shared_ptr<std::byte> residual;  // null: not compressed, or no error feedback
    std::shared_ptr<std::byte> whole;     // output of DeviceCoding::begin(); null: it is not called
    std::size_t bytes = 0;                // size of the residual
    bool any = false;                     // false: zeros, whatever the memory holds
    bool foreign = false;                 // restored, possibly for stripes that another rank of the host encodes
  };
  struct Reading;

  DeviceCompressor(DeviceTransport& transport, net::DeviceCollectives* nccl) : transport_(transport), nccl_(nccl) {}
  Status reserve_tensors(const std::vector<scheduler::PlannedTensor>& tensors, bool whole);
  Status reserve_buffers(const scheduler::Plan& plan, const Traffic& traffic);
  Result<std::byte*> residual(int tensor);
  Result<std::vector<SliceMemory>> memory_of(const scheduler::Partition& partition);
  Status claim_residual(int tensor, const compression::Ownership& ownership, const TensorView& gradient);
  static void read_next(std::shared_ptr<Reading> reading);

  DeviceTransport& transport_;
  net::DeviceCollectives* const nccl_;
  std::vector<Tensor> tensors_;  // indexed by tensor
};

}  // namespace sirtaki::engine
