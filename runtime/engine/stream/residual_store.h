// ResidualStore: what this rank owes of a stream's tensors, and what their codecs remember.
//
// Owned by GradientStream; loop thread. Lives as long as the stream, across plans and steps given up. A tensor has a
// CodecState from its first compressed step on; another codec or other parameters take over what is owed, and a
// tensor that is not compressed any more gives it with its next gradient.
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
  // `groups`: where hosts sum up first, else null; outlive it.
  ResidualStore(const std::vector<StreamTensor>& tensors, Rank rank, int ranks,
                const net::HostGroups* groups = nullptr);

  // The gradient is there and is about to be sent as `planned` says: once a step, before any part of it is; `step`: of
  // the training. Scales it if it travels compressed (a dense partition does that itself), lets the codec look at it,
  // settles what it owes if it does not.
  void admit(int index, const scheduler::PlannedTensor& planned, const TensorView& gradient, double prescale,
             std::uint64_t step);
  // Of a tensor that was admitted compressed.
  compression::CodecState& of(int index) { return *memories_[at(index)]; }
  // By rank, what decodes their payloads of it; empty: as of().
  std::span<const compression::Coder* const> senders(int index) const { return sent_by_[at(index)]; }
  // False: known not to be, in this step.
  bool finite(int index) const { return finite_[at(index)] != 0; }

  // What this rank owes of the tensor: its elements, float32.
  void residual(int index, std::byte* out) const;
  bool has_residual(int index) const;
  double residual_norm(int index) const;  // Euclidean
  // Gives up what it owes, between steps.
  void forget(int index);
  // Takes this as what it owes, between steps.
  void restore(int index, const std::byte* in);

  // What the tensor's codec remembers beside residuals; empty: nothing. Between steps, and so is setting it.
  std::vector<std::byte> codec_state(int index) const;
  // kInvalidArgument: not what remembered() gave, or of another tensor. Empty: the codec begins anew.
  Status load_codec_state(int index, ConstBytes in);

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  compression::CodecState& open(int index, const scheduler::PlannedTensor& planned, const TensorView& gradient,
                                std::uint64_t step);
  void flush_residual(int index, const TensorView& gradient);
  void flush_foreign(int index, compression::CodecState& memory, const TensorView& gradient);
  void open_senders(int index, const scheduler::Decision& decision, const compression::PayloadCodec& codec);
  // All that is owed becomes the residual of `to`.
  void hand_over(int index, compression::CodecState& to) const;
  void flush_momentum(int index, float momentum, const TensorView& gradient);

  std::vector<compression::Shape> shapes_;
  const Rank rank_;
  const int ranks_;
  const net::HostGroups* const groups_;
  std::vector<std::unique_ptr<compression::CodecState>> memories_;
  std::vector<ReductionKind> reductions_;         // of these, the last
  std::vector<std::vector<std::int64_t>> keeps_;  // of these, the last decision's
  std::vector<std::vector<std::unique_ptr<compression::Coder>>> senders_;
  std::vector<std::vector<const compression::Coder*>> sent_by_;
  // Not taken over by a CodecState yet.
  std::vector<std::vector<float>> restored_residuals_;
  std::vector<std::vector<std::byte>> loaded_states_;
  std::vector<std::uint8_t> finite_;
};

}  // namespace sirtaki::engine
