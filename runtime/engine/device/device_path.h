// DevicePath: DensePath for gradients on a GPU, over collectives of device memory.
//
// A single tensor is sent from its own memory; several tensors, and those sent as halves, are packed or cast by the
// copy stream of the transport, which alone orders the uses of that memory. After an abandoned step, the next one gets
// other memory. Owner: the stream. Thread: loop.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/reduction/dense_path.h"
#include "runtime/net/device/device_collectives.h"

namespace sirtaki::engine {

// Zeros on a GPU, for the gradients of a joined rank.
class DeviceZeros {
 public:
  // See DensePath::zeros().
  Result<std::byte*> make(DeviceTransport& transport, std::size_t bytes);
  void release() { memory_.reset(); }

 private:
  std::shared_ptr<std::byte> memory_;
};

// See DensePath::add_residual().
Status add_residual_on_device(DeviceTransport& transport, const TensorView& gradient,
                              const DensePath::AddResidual& add);

class DevicePath final : public DensePath {
 public:
  // `transport` and `net` must outlive the path.
  DevicePath(DeviceTransport& transport, net::DeviceCollectives& net) : transport_(transport), net_(net) {}

  // Allocates the memory in which any plan for these tensors packs them; tensors above `fusion_bytes` are packed only
  // if they are cast. kExhausted if there is too little.
  Status reserve(const scheduler::Plan& plan, std::int64_t fusion_bytes);
  void adopt(const scheduler::Plan& plan) override;
  void discard_step() override;
  Result<Packed> gather(const scheduler::Partition& partition, std::span<const TensorView> views) override;
  void start(net::CollectiveArgs args, Done done) override;
  void cancel(const net::TagGroup& tags, const Status& cause) override { net_.cancel(tags, cause); }
  Status scatter(const scheduler::Partition& partition, std::span<const TensorView> views,
                 BufferPool::Buffer packed) override;
  Status add_residual(const TensorView& gradient, const AddResidual& add) override {
    return add_residual_on_device(transport_, gradient, add);
  }
  Result<std::byte*> zeros(std::size_t bytes) override { return zeros_.make(transport_, bytes); }
  void release_zeros() override { zeros_.release(); }
  bool on_host() const override { return false; }

 private:
  Status make_memory();
  // Copies the elements of a slice, and casts them if the types differ.
  Status move(DType from, ConstBytes in, DType to, Bytes out, std::int64_t numel);

  DeviceTransport& transport_;
  net::DeviceCollectives& net_;
  std::vector<std::size_t> places_;  // offset in memory_ by position
  std::size_t needed_ = 0;
  std::size_t held_ = 0;
  std::shared_ptr<std::byte> memory_;  // shared with operations in flight
  std::shared_ptr<int> in_flight_ = std::make_shared<int>(0);
  DeviceZeros zeros_;
};

}  // namespace sirtaki::engine
