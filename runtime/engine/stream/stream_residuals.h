// StreamResiduals: residuals and codec states of a stream, on the CPU (ResidualStore) or on a GPU (DeviceCompressor).
//
// Owned by GradientStream; loop thread. It does not check whether a step is in progress: GradientStream does so before
// it lets the program read or set anything.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/task.h"
#include "runtime/engine/common/requests.h"
#include "runtime/engine/device/device_compressor.h"
#include "runtime/engine/reduction/dense_path.h"
#include "runtime/engine/reduction/reduction.h"
#include "runtime/engine/stream/residual_store.h"
#include "runtime/net/collectives/collectives.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

class StreamResiduals {
 public:
  // `spec` must outlive it.
  StreamResiduals(const StreamSpec& spec, net::Collectives& net);

  // Sets the compressor of gradients on a GPU; nullptr: compressed tensors are encoded on the CPU.
  void set_compressor(std::unique_ptr<DeviceCompressor> compressor) { compressor_ = std::move(compressor); }

  // Prepares a gradient that is about to be sent as `planned` says: adds the residual of a tensor that is no longer
  // compressed, scales one that is. Call once per step and tensor. `step`: number of the training step.
  Status admit(int index, const scheduler::PlannedTensor& planned, const TensorView& gradient, DensePath& path,
               std::uint64_t step);
  // Returns the state that the reduction of a slice needs.
  ReducedSlice slice(const scheduler::Slice& slice, const scheduler::PlannedTensor& planned,
                     std::span<const TensorView> views, bool absent);
  std::shared_ptr<Reduction> reduce(const scheduler::Partition& partition, ReductionSpec spec, ReductionDeps deps,
                                    StageNote note);

  // Writes the residual of a tensor, float32, to `out`. `done` comes later if the residual is on a GPU.
  void read(int index, std::span<float> out, Done done) const;
  // Sets the residual of a tensor. Returns kUnsupported if the tensor is encoded on a GPU without error feedback.
  Status load(int index, const scheduler::PlannedTensor& planned, std::span<const float> in, Rank job_rank);
  // Writes the residuals of all tensors, one after the other, to `out` unless it is empty, and clears them.
  // Requires !on_device().
  Status drain(const scheduler::Plan& plan, std::span<float> out);
  bool on_device() const { return compressor_ != nullptr; }
  std::vector<std::byte> codec_state(int index) const { return store_.codec_state(index); }
  Status load_codec_state(int index, ConstBytes in) { return store_.load_codec_state(index, in); }
  // Calls `then` with the Euclidean norm of the residual of each tensor.
  void norms(MoveFunction<void(const Status&, const std::vector<double>&)> then) const;

 private:
  const StreamSpec& spec_;
  ResidualStore store_;
  std::unique_ptr<DeviceCompressor> compressor_;
};

}  // namespace sirtaki::engine
