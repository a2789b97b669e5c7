// HostStagedPath: DensePath for gradients on a GPU, staged through pinned host memory.
//
// Carries the partitions that are not compressed, of streams that compress on the GPU without NCCL. A partition is
// copied to the host, summed there with the bits of the CPU, and copied back. Owner: the stream. Thread: loop. Does not
// support halves or scaling.
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
  // `transport` and `net` must outlive the path.
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
  void release_zeros() override { zeros_.release(); }
  bool on_host() const override { return false; }

 private:
  // An operation whose copy to the host is pending.
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
