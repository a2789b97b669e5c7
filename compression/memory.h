// CodecState: what a rank owes of one tensor, between steps.
//
// For: reductions. Owned by: the stream, by tensor. Threads: one at a time. Not for: deciding on codecs.
// A rank's residual is what it has not sent of its own gradients, or of the sums of its host's; the owner's is what it
// has not sent on of the sums of the stripes it owns. Both are addressed by the tensor's elements, so they stay when a
// plan cuts it differently. The mean over ranks of owed() is what the model has still to be given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "compression/coder.h"
#include "compression/payload_codec.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::compression {

// Which rank owns a stripe: they go round. The same on all ranks, whatever the plan. Where the ranks of a host sum up
// first and each exchanges some shares of the sum with ranks of other hosts, rounds of stripes go to the shares in
// turn, and a share's go round the ranks that exchange it.
struct Ownership {
  std::int64_t stripe = 1;
  int ranks = 1;  // that exchange a share
  Rank rank = 0;  // whose memory this is, among them
  int shares = 1;
  int first_share = 0;  // of those that this rank exchanges, which are neighbours
  int own_shares = 1;
  int first_round = 0;  // the share of the tensor's first stripes

  Rank owner_of(std::int64_t offset) const { return static_cast<Rank>(offset / stripe % ranks); }
  int share_of(std::int64_t offset) const { return static_cast<int>(round_of(offset) % shares); }
  // Whether this rank encodes what its host has there; where there are no shares, each encodes its own everywhere.
  bool exchanges(std::int64_t offset) const {
    const int share = share_of(offset);
    return share >= first_share && share < first_share + own_shares;
  }
  bool owns(std::int64_t offset) const { return owner_of(offset) == rank && exchanges(offset); }
  // Rounds are counted so that share_of() is what is left of one.
  std::int64_t round_of(std::int64_t offset) const { return offset / stripe / ranks + first_round; }
};

class CodecState {
 public:
  CodecState(const PayloadCodec& codec, std::vector<std::int64_t> params, const Shape& shape,
             const Ownership& ownership);

  const PayloadCodec& codec() const { return codec_; }
  Params params() const { return params_; }
  const Shape& shape() const { return shape_; }
  const Ownership& ownership() const { return ownership_; }

  // The step of the training that comes (Coder::at_step()), for both coders.
  void at_step(std::uint64_t step);

  // What this rank sends of its own gradient.
  Coder& coder() { return *coder_; }
  // What it sends on of stripes it owns; made at the first use.
  Coder& owner_coder();

  // gradient: elements from `offset` on. The residual is zero at the first use; without error feedback there is none.
  kernels::Feedback feedback(const std::byte* gradient, std::int64_t offset);
  // The same for sums of a stripe that this rank owns (Ownership::owns()); offset: of the stripe, or inside it.
  kernels::Feedback owner_feedback(const std::byte* sums, std::int64_t offset);

  // What the coder remembers beside residuals, for a checkpoint; empty: nothing. Owners' coders remember nothing.
  std::vector<std::byte> remembered() const;
  // Goes on with it: wholly where codec and parameters are the same, with its momentum alone where they are not, and
  // not at all where it was not of such a tensor.
  void recall(ConstBytes remembered);
  // kInvalidArgument: not what remembered() gave, or of another number of elements.
  static Status check_remembered(ConstBytes remembered, std::int64_t numel);

  // Of the coder, where it corrects momentum; empty: all zero.
  std::vector<float> momentum() const { return coder_->state().momentum; }

  // Whether anything may be owed.
  bool empty() const { return residual_.empty() && owner_residual_.empty(); }
  // Residual plus owner's residual, shape().numel float32.
  void owed(std::byte* out) const;
  // Owes nothing any more; what the coder remembers stays.
  void forget() {
    residual_.clear();
    owner_residual_.clear();
  }
  // Takes this as the residual, and nothing as the owner's.
  void restore(const std::byte* in);
  // Adds owed() to gradients, elements [offset, offset + numel), and owes nothing of them any more.
  void settle(const Piece& piece, std::byte* gradient);
  // Gives up the residual where this rank does not exchange (Ownership::exchanges()): adds `part` of it to out,
  // shape().numel float32, and owes nothing there any more.
  void give_foreign(float part, std::byte* out);

 private:
  std::int64_t owner_index(std::int64_t offset) const;

  const PayloadCodec& codec_;
  const std::vector<std::int64_t> params_;
  const Shape shape_;
  const Ownership ownership_;
  std::unique_ptr<Coder> coder_;
  std::unique_ptr<Coder> owner_coder_;
  std::uint64_t step_ = 0;
  std::vector<float> residual_;
  std::vector<float> owner_residual_;  // the stripes this rank owns, one behind the other
};

}  // namespace sirtaki::compression
