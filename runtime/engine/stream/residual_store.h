// ResidualStore: residuals and codec states of the tensors of a stream on this rank, in host memory.
//
// Owned by StreamResiduals; loop thread. Lives as long as the stream, across plans and steps given up. A tensor has a
// CodecState from its first compressed step on. Another codec or other parameters take over the residual; if the tensor
// is not compressed any more, the residual is added to its next gradient.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compression/codec_state.h"
#include "runtime/base/tensor.h"
#include "runtime/engine/common/requests.h"
#include "runtime/net/link/hosts.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

class ResidualStore {
 public:
  // `groups`: not null if hosts sum first; outlives the store.
  ResidualStore(const std::vector<StreamTensor>& tensors, Rank rank, int ranks,
                const net::HostGroups* groups = nullptr);

  // Prepares a gradient that is about to be sent as `planned` says. A compressed one is scaled (the path of dense
  // partitions scales the others); another one gets the residual added. Call once per step and tensor, before any part
  // of it is sent. `step`: number of the training step.
  void admit(int index, const scheduler::PlannedTensor& planned, const TensorView& gradient, double prescale,
             std::uint64_t step);
  // Shows a gradient in host memory, which was admitted compressed, to its codec.
  void begin(int index, const TensorView& gradient);
  // Returns the state of a tensor that was admitted compressed.
  compression::CodecState& of(int index) { return *states_[at(index)]; }
  // Returns the coders that decode the payloads of each rank; empty: the coder of of() decodes all.
  std::span<const compression::Coder* const> senders(int index) const { return sent_by_[at(index)]; }
  // Returns false if the gradient of this step is known to hold NaN or infinity.
  bool finite(int index) const { return finite_[at(index)] != 0; }

  // Writes the residual of the tensor, one float32 for each element.
  void residual(int index, std::byte* out) const;
  bool has_residual(int index) const;
  double residual_norm(int index) const;  // Euclidean
  // Clears the residual. Call between steps.
  void clear_residual(int index);
  // Sets the residual. Call between steps.
  void load_residual(int index, const std::byte* in);

  // Returns the state of the codec of the tensor without its residual; empty if there is none. Call between steps.
  std::vector<std::byte> codec_state(int index) const;
  // Sets that state; an empty one resets the codec. Call between steps. Returns kInvalidArgument if `in` is no codec
  // state, or one of a tensor of another size.
  Status load_codec_state(int index, ConstBytes in);

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  compression::CodecState& open(int index, const scheduler::PlannedTensor& planned, const TensorView& gradient,
                                std::uint64_t step);
  void flush_residual(int index, const TensorView& gradient);
  void flush_foreign(int index, compression::CodecState& state, const TensorView& gradient);
  void open_senders(int index, const scheduler::Decision& decision, const compression::PayloadCodec& codec);
  // Copies the residual of the tensor into `to`.
  void copy_residual(int index, compression::CodecState& to) const;
  void flush_momentum(int index, float momentum, const TensorView& gradient);

  std::vector<compression::Shape> shapes_;
  const Rank rank_;
  const int ranks_;
  const net::HostGroups* const groups_;
  std::vector<std::unique_ptr<compression::CodecState>> states_;
  std::vector<ReductionKind> reductions_;         // the last of each tensor
  std::vector<std::vector<std::int64_t>> keeps_;  // those of the last decision on each tensor
  std::vector<std::vector<std::unique_ptr<compression::Coder>>> senders_;
  std::vector<std::vector<const compression::Coder*>> sent_by_;
  // Residuals and states that no CodecState has taken over yet.
  std::vector<std::vector<float>> loaded_residuals_;
  std::vector<std::vector<std::byte>> loaded_states_;
  std::vector<std::uint8_t> finite_;
};

}  // namespace sirtaki::engine
