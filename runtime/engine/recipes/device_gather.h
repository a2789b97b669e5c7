// DeviceGather: Gather (gather.h) of gradients on a GPU, which encodes and sums; what travels is in the host's memory.
//
// Kernels encode every stripe, and payloads are copied to the host; they are exchanged and checked there, copied to the
// device, and summed by kernels into the gradients' place. Bytes and results are those of Gather, but that a sum of
// gradient and residual beyond float32's range counts as not finite here. Done comes when all that is left has been
// given to the plane's stream for copies.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/engine/device_plane.h"
#include "runtime/engine/recipes/slices.h"

namespace sirtaki::engine {

class DeviceGather final : public Reduction {
 public:
  // Slices of `spec` are on the device, and all their coders can encode there. `owed`: by slice what this rank owes of
  // its elements, on the device; null: what is not sent is lost. An error of the device instead of these: the reduction
  // ends with it. `plane` outlives it.
  DeviceGather(ReductionSpec spec, ReductionDeps deps, StageNote note, DevicePlane& plane,
               Result<std::vector<std::byte*>> owed);

 private:
  void begin() override;
  std::size_t phases() const override { return 1; }
  Status take_memory();
  Status encode();
  Status send();
  Status check();
  Status finish();
  Status sum(const Stripe& stripe);

  // On the host: a rank's header and payloads, as they travel.
  Bytes block(Rank rank) const;
  // Of a stripe: in block(); on the device.
  Bytes payload(const Stripe& stripe, Rank rank) const;
  std::byte* device_payload(const Stripe& stripe, Rank rank) const;
  std::byte* owed(const Stripe& stripe) const;

  DevicePlane& plane_;
  Slices slices_;
  const Result<std::vector<std::byte*>> owed_;
  // Of stripes: where their payloads begin, behind each other as they travel and aligned as kernels want it.
  std::vector<std::size_t> place_;
  std::vector<std::size_t> device_place_;
  std::size_t block_bytes_ = 0;
  std::size_t device_block_bytes_ = 0;
  std::size_t flags_bytes_ = 0;        // a word for each stripe, at the beginning of both memories
  device::PinnedBlock host_;           // flags, then the ranks' blocks
  std::shared_ptr<std::byte> device_;  // likewise
};

}  // namespace sirtaki::engine
