// HostStagedPath: dense partitions of gradients on a GPU, through the host's memory.
//
// For: streams that encode on the GPU where NCCL is not used: what is not encoded of them travels so. A partition is
// copied to memory of the host, added up there as on a CPU, with its bits, and copied back. Owned by a stream; loop
// thread. Not for: halves, scaling.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/device/device_path.h"
#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/reduction/dense_path.h"

namespace sirtaki::engine {

class HostStagedPath final : public DensePath {
 public:
  // Both outlive it.
  HostStagedPath(DeviceTransport& transport, net::Collectives& net) : transport_(transport), net_(net) {}

  void adopt(const scheduler::Plan& /*plan*/) override {}
  void discard_step() override {}
  Result<Packed> gather(const scheduler::Partition& partition, std::span<const TensorView> views) override;
  void start(net::CollectiveArgs args, Done done) override;
  void cancel(const net::TagGroup& tags, const Status& cause) override;
  Status scatter(const scheduler::Partition& partition, std::span<const TensorView> views,
                 BufferPool::Buffer packed) override;
  Status add_residual(const TensorView& gradient, const AddResidual& add) override {
    return add_residual_on_device(transport_, gradient, add);
  }
  Result<std::byte*> zeros(std::size_t bytes) override { return zeros_.make(transport_, bytes); }
  void release_zeros() override { zeros_.over(); }
  bool on_host() const override { return false; }

 private:
  // Waits for its copy.
  struct Starting {
    OpTag tag;
    Status cancelled;
  };

  DeviceTransport& transport_;
  net::Collectives& net_;
  std::vector<std::shared_ptr<Starting>> starting_;
  DeviceZeros zeros_;
};

}  // namespace sirtaki::engine
