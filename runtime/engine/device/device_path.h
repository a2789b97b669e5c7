// DevicePath: dense partitions of gradients on a GPU, over collectives of its memory.
//
// A tensor that travels alone does so from where it is; several, and those that travel as halves, are copied together
// or cast there and back by the transport's stream for copies, which is all that orders the uses of that memory. Where
// a step is given up, the next one gets other memory. Owned by a stream; loop thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/reduction/dense_path.h"
#include "runtime/net/device/device_collectives.h"

namespace sirtaki::engine {

// Zeros on a GPU, for gradients of a rank without data.
class DeviceZeros {
 public:
  // As DensePath::zeros().
  Result<std::byte*> make(DeviceTransport& transport, std::size_t bytes);
  void over() { memory_.reset(); }

 private:
  std::shared_ptr<std::byte> memory_;
};

// As DensePath::add_residual().
Status add_residual_on_device(DeviceTransport& transport, const TensorView& gradient,
                              const DensePath::AddResidual& add);

class DevicePath final : public DensePath {
 public:
  // Both outlive it.
  DevicePath(DeviceTransport& transport, net::DeviceCollectives& net) : transport_(transport), net_(net) {}

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
  void release_zeros() override { zeros_.over(); }
  bool on_host() const override { return false; }

 private:
  Status make_memory();
  // A slice's elements, from one dtype to the other, or as they are.
  Status move(DType from, ConstBytes in, DType to, Bytes out, std::int64_t numel);

  DeviceTransport& transport_;
  net::DeviceCollectives& net_;
  std::vector<std::size_t> places_;  // by position: where it is packed in memory_
  std::size_t needed_ = 0;
  std::size_t held_ = 0;
  std::shared_ptr<std::byte> memory_;  // also held by what is in flight
  std::shared_ptr<int> in_flight_ = std::make_shared<int>(0);
  DeviceZeros zeros_;
};

}  // namespace sirtaki::engine
