// DeviceGather: Gather (gather.h) of gradients on a GPU, which encodes and sums; what travels is in the host's memory.
//
// Kernels encode every slice as a whole, and this rank's payloads are copied to the host; all are exchanged and checked
// there, copied to the device, and summed by kernels into the gradients' place. Results are those of Gather, but that a
// number which its codec cannot send (a sum of gradient and residual beyond float32's range; from 2^29 on, values that
// travel as float16) counts as not finite here. Payloads begin at multiples of a word, on the wire as well, so all
// ranks have to do alike. Done comes when all that is left has been given to the transport's stream for copies.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/reduction/slices.h"

namespace sirtaki::engine {

class DeviceGather final : public Reduction {
 public:
  // Slices of `spec` are on the device, and all their coders can encode there. `residuals`: by slice what this rank
  // owes of its elements, on the device; null: what is not sent is lost. An error of the device instead of these: the
  // reduction ends with it. `transport` outlives it.
  DeviceGather(ReductionSpec spec, ReductionDeps deps, StageNote note, DeviceTransport& transport,
               Result<std::vector<std::byte*>> residuals);

 private:
  void begin() override;
  std::size_t phases() const override { return 1; }
  Status take_memory();
  Status encode();
  Status send();
  Status check();
  Status finish();
  Status decode();
  Status sum(const Stripe& slice);

  // Where they are in either memory: a rank's block, its payload of a slice in that.
  std::size_t block_at(Rank rank) const { return flags_bytes_ + static_cast<std::size_t>(rank) * block_bytes_; }
  std::size_t payload_at(const Stripe& slice, Rank rank) const { return block_at(rank) + places_[slice.index]; }
  Bytes on_host(std::size_t at, std::size_t bytes) const { return host_.bytes().subspan(at, bytes); }

  DeviceTransport& transport_;
  Slices slices_;
  std::vector<Stripe> wholes_;  // a slice each
  const Result<std::vector<std::byte*>> residuals_;
  std::vector<std::size_t> places_;  // of payloads in a block, behind its header
  std::size_t block_bytes_ = 0;
  std::size_t flags_bytes_ = 0;        // a word for each slice
  device::PinnedBlock host_;           // flags, then the ranks' blocks
  std::shared_ptr<std::byte> device_;  // the same
};

}  // namespace sirtaki::engine
