// DensePath: what a Stream does with the bytes of a partition that is not lossy: gathered, added up, scattered.
//
// Owned by the stream; loop thread. One for memory of the host here; for that of a GPU one over NCCL in device_path.h
// and one through the host's memory in staged_path.h.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "runtime/base/task.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/base/tensor.h"
#include "runtime/engine/common/buffer_pool.h"
#include "runtime/net/collectives/collectives.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

class DensePath {
 public:
  DensePath() = default;
  DensePath(const DensePath&) = delete;
  DensePath& operator=(const DensePath&) = delete;
  virtual ~DensePath() = default;

  // What partitions there are from now on.
  virtual void adopt(const scheduler::Plan& plan) = 0;
  // What is in flight is of a step that was given up, and may still be for a while.
  virtual void discard_step() = 0;
  // `views`: the gradients, by tensor. What travels, in the path's own memory; without memory where it travels from
  // where it is, which is `in_place`.
  struct Packed {
    BufferPool::Buffer memory;
    Bytes in_place;
    Bytes bytes() const { return memory.bytes().empty() ? in_place : memory.bytes(); }
  };
  virtual Result<Packed> gather(const scheduler::Partition& partition, std::span<const TensorView> views) = 0;
  virtual void start(net::CollectiveArgs args, Done done) = 0;
  // As Collectives', of what travels over others than the host's.
  virtual void cancel(const net::TagGroup& tags, const Status& cause) = 0;
  // `packed`: the memory that gather() gave, with the sums; it goes when nothing reads it any more.
  virtual Status scatter(const scheduler::Partition& partition, std::span<const TensorView> views,
                         BufferPool::Buffer packed) = 0;

  // A debt that goes with this gradient: `add` adds it to float32 of the host's memory, the gradient's or zeros that
  // are added to it. Before any of it is gathered.
  using AddResidual = std::function<void(const TensorView& host)>;
  virtual Status add_residual(const TensorView& gradient, const AddResidual& add) = 0;

  // Zeros, until release_zeros(), for gradients of a rank without data; anew for each step, as sums are written there.
  virtual Result<std::byte*> zeros(std::size_t bytes) = 0;
  virtual void release_zeros() = 0;

  // Whether elements can be looked at here.
  virtual bool on_host() const = 0;
};

Bytes slice_of(const scheduler::Slice& slice, std::span<const TensorView> views);
// Where the slice lies in its partition, packed as `wire`.
Bytes packed_slice(const scheduler::Slice& slice, Bytes packed, DType wire);
// It travels from where it is.
bool in_place(const scheduler::Partition& partition);

class HostPath final : public DensePath {
 public:
  struct Scales {
    double before = 1;
    double after = 1;
  };
  // All outlive it. `shared_bytes` counts what is packed into memory that other ranks can read.
  HostPath(net::Collectives& net, BufferPool& buffers, Counter& shared_bytes, const Scales& scales)
      : net_(net), buffers_(buffers), shared_bytes_(shared_bytes), scales_(scales) {}

  void adopt(const scheduler::Plan& /*plan*/) override {}
  void discard_step() override {}
  Result<Packed> gather(const scheduler::Partition& partition, std::span<const TensorView> views) override;
  void start(net::CollectiveArgs args, Done done) override { net_.start(std::move(args), std::move(done)); }
  void cancel(const net::TagGroup& /*tags*/, const Status& /*cause*/) override {}
  Status scatter(const scheduler::Partition& partition, std::span<const TensorView> views,
                 BufferPool::Buffer packed) override;
  Status add_residual(const TensorView& gradient, const AddResidual& add) override;
  Result<std::byte*> zeros(std::size_t bytes) override;
  void release_zeros() override { std::vector<std::byte>().swap(zeros_); }
  bool on_host() const override { return true; }

 private:
  BufferPool::Buffer memory(std::size_t bytes);
  void pack(const scheduler::Partition& partition, std::span<const TensorView> views, Bytes out);

  net::Collectives& net_;
  BufferPool& buffers_;
  Counter& shared_bytes_;
  const Scales scales_;
  std::vector<std::byte> zeros_;
};

}  // namespace sirtaki::engine
