// DeviceCodes: gradients of one stream that are encoded on the GPU they are on, and what this rank owes of them there.
//
// Payloads travel through the host's memory, as those of the CPU do and with the same bytes: a few percent of what the
// tensor would be. Residuals stay on the device; whoever asks for them gets copies.
// Owned by Stream; loop thread. Kernels and copies are given to the plane's stream for copies, which is all that orders
// the uses of memory. Not for: what the program sees of a tensor (staged_stream.h), codecs that remember more than a
// residual (compression/device_coding.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/task.h"
#include "runtime/engine/device_plane.h"
#include "runtime/engine/recipes/reduction.h"
#include "scheduler/plan.h"

namespace sirtaki::engine {

class DeviceCodes {
 public:
  // `tensors`: of the stream, float32 where they are encoded; both outlive it.
  DeviceCodes(DevicePlane& plane, const std::vector<scheduler::PlannedTensor>& tensors);

  // Whether a tensor that travels so, among so many ranks, can be encoded on a device.
  static bool can(const scheduler::PlannedTensor& tensor, int ranks);

  // Of a partition whose slices are on the device.
  std::shared_ptr<Reduction> reduce(const scheduler::Partition& partition, ReductionSpec spec, ReductionDeps deps,
                                    StageNote note);

  // ---- what is owed; between two steps ----

  // For each of these tensors of which anything may be owed `each`, with all its elements, then `done`; later.
  void read(std::vector<int> tensors, MoveFunction<void(int tensor, ConstBytes owed)> each, Done done);
  Status restore(int tensor, std::span<const float> in);
  void forget(int tensor) { owed_[static_cast<std::size_t>(tensor)].reset(); }

 private:
  std::size_t bytes_of(int tensor) const;
  Result<std::byte*> owed(int tensor);
  Result<std::vector<std::byte*>> owed_of(const scheduler::Partition& partition, const ReductionSpec& spec);

  DevicePlane& plane_;
  std::vector<std::size_t> bytes_;                // by tensor
  std::vector<std::shared_ptr<std::byte>> owed_;  // by tensor; null: nothing
};

}  // namespace sirtaki::engine
