// DensePath: transport of a partition that is not compressed: gather into packed memory, allreduce, scatter back.
//
// Owner: the stream. Thread: loop. HostPath is for host memory; device_path.h has one over NCCL for GPU memory, and
// host_staged_path.h one that stages it through host memory.
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

  // Adopts a plan: its partitions are used from now on.
  virtual void adopt(const scheduler::Plan& plan) = 0;
  // Declares the operations in flight part of an abandoned step; they may still use their memory for a while.
  virtual void discard_step() = 0;
  // The payload of a partition: packed in memory of the path, or the gradient itself if `in_place` is set.
  struct Packed {
    BufferPool::Buffer memory;
    Bytes in_place;
    Bytes bytes() const { return memory.bytes().empty() ? in_place : memory.bytes(); }
  };
  // Packs a partition. `views`: the gradients, by tensor.
  virtual Result<Packed> gather(const scheduler::Partition& partition, std::span<const TensorView> views) = 0;
  // Starts the allreduce of a packed partition; see Collectives::start().
  virtual void start(net::CollectiveArgs args, Done done) = 0;
  // See Collectives::cancel(); for operations that are not in the collectives of the host.
  virtual void cancel(const net::TagGroup& tags, const Status& cause) = 0;
  // Unpacks the sums in `packed`, the memory from gather(), into the gradients; keeps it until nothing reads it.
  virtual Status scatter(const scheduler::Partition& partition, std::span<const TensorView> views,
                         BufferPool::Buffer packed) = 0;

  // Adds a residual to a gradient before any part of it is gathered. `add` adds the residual to float32 in host memory:
  // to the gradient itself, or to zeros that are then added to the gradient.
  using AddResidual = std::function<void(const TensorView& host)>;
  virtual Status add_residual(const TensorView& gradient, const AddResidual& add) = 0;

  // Returns zeroed memory for the gradients of a joined rank, valid until release_zeros(). Call it anew for each step,
  // because sums are written there.
  virtual Result<std::byte*> zeros(std::size_t bytes) = 0;
  virtual void release_zeros() = 0;

  // Returns true if the CPU can read the gradients.
  virtual bool on_host() const = 0;
};

// Returns the memory of a slice in its gradient.
Bytes slice_of(const scheduler::Slice& slice, std::span<const TensorView> views);
// Returns the place of a slice in its partition, packed as `wire`.
Bytes packed_slice(const scheduler::Slice& slice, Bytes packed, DType wire);
// Returns true if the partition is sent from the memory of its gradient, without packing.
bool in_place(const scheduler::Partition& partition);

class HostPath final : public DensePath {
 public:
  struct Scales {
    double before = 1;
    double after = 1;
  };
  // References must outlive the path. `shared_bytes` counts bytes packed into memory that other ranks can read.
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
