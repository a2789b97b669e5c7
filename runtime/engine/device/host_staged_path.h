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
  HostStagedPath(DeviceTransport& plane, net::Collectives& net) : plane_(plane), net_(net) {}

  void adopt(const scheduler::Plan& /*plan*/) override {}
  void step_void() override {}
  Result<Packed> gather(const scheduler::Partition& partition, std::span<const TensorView> views) override;
  void start(net::CollectiveArgs args, Done done) override;
  void cancel(const net::TagGroup& tags, const Status& cause) override;
  Status scatter(const scheduler::Partition& partition, std::span<const TensorView> views,
                 BufferPool::Buffer packed) override;
  Status pay(const TensorView& gradient, const AddDebt& add) override { return pay_on_device(plane_, gradient, add); }
  Result<std::byte*> zeros(std::size_t bytes) override { return zeros_.make(plane_, bytes); }
  void zeros_over() override { zeros_.over(); }
  bool on_host() const override { return false; }

 private:
  // Waits for its copy.
  struct Starting {
    OpTag tag;
    Status cancelled;
  };

  DeviceTransport& plane_;
  net::Collectives& net_;
  std::vector<std::shared_ptr<Starting>> starting_;
  DeviceZeros zeros_;
};

}  // namespace sirtaki::engine
