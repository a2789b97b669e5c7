// CodecState: the residual and the coder state of one tensor, between steps.
//
// The residual of a rank is the part not sent of its own gradients, or of the sums of its host; the residual of an
// owner is the part not sent of the sums of the stripes it owns. Both are addressed by the elements of the tensor, so
// they stay valid when a plan cuts it differently. The mean of residual() over ranks is the update not yet applied to
// the model.
// Used by reduction algorithms. The stream owns one for each tensor. Threads: one at a time. Does not decide on codecs.
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

// Ownership of stripes: round-robin over the ranks, the same on all ranks and for every plan. If the ranks of a host
// sum first and each of them exchanges some shares of the sum with ranks of other hosts, rounds of stripes go to the
// shares in turn, and the stripes of a share round-robin to the ranks that exchange it.
struct Ownership {
  std::int64_t stripe = 1;
  int ranks = 1;  // number of ranks that exchange a share
  Rank rank = 0;  // this rank among them
  int shares = 1;
  int first_share = 0;  // first of the consecutive shares that this rank exchanges
  int own_shares = 1;
  int first_round = 0;  // the share of the first stripes of the tensor

  Rank owner_of(std::int64_t offset) const { return static_cast<Rank>(offset / stripe % ranks); }
  int share_of(std::int64_t offset) const { return static_cast<int>(round_of(offset) % shares); }
  // Returns true if this rank encodes the sum of its host there; without shares, every rank encodes its own gradient
  // everywhere.
  bool exchanges(std::int64_t offset) const {
    const int share = share_of(offset);
    return share >= first_share && share < first_share + own_shares;
  }
  bool owns(std::int64_t offset) const { return owner_of(offset) == rank && exchanges(offset); }
  // Rounds are counted so that share_of() is a remainder of the round.
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

  // Sets the number of the next training step (Coder::at_step()) for both coders.
  void at_step(std::uint64_t step);

  // The coder of the gradient of this rank.
  Coder& coder() { return *coder_; }
  // The coder of the sums of owned stripes; created at the first use.
  Coder& owner_coder();

  // gradient: elements from `offset` on. The residual is zero at the first use; without error feedback there is none.
  kernels::Feedback feedback(const std::byte* gradient, std::int64_t offset);
  // The same for sums of a stripe that this rank owns (Ownership::owns()); offset: start of the stripe, or inside it.
  kernels::Feedback owner_feedback(const std::byte* sums, std::int64_t offset);

  // Returns the coder state for a checkpoint, without residuals; empty if there is none. Coders of owners have no
  // state.
  std::vector<std::byte> state() const;
  // Restores a coder state: all of it if codec and parameters are equal, its momentum alone if they differ, nothing if
  // it is of a tensor of another size.
  void load_state(ConstBytes saved);
  // Returns kInvalidArgument if `saved` is no coder state, or one of another number of elements.
  static Status check_state(ConstBytes saved, std::int64_t numel);

  // Returns the momentum of the coder; empty if it is zero everywhere.
  std::vector<float> momentum() const { return coder_->state().momentum; }

  // Returns true if there is no residual.
  bool empty() const { return residual_.empty() && owner_residual_.empty(); }
  // Writes the residual plus that of the owner, shape().numel float32.
  void residual(std::byte* out) const;
  // Clears the residual; the coder state stays.
  void clear_residual() {
    residual_.clear();
    owner_residual_.clear();
  }
  // Sets the residual, and clears that of the owner.
  void load_residual(const std::byte* in);
  // Adds residual() to gradients, elements [offset, offset + numel), and clears the residual there.
  void flush_residual(const Piece& piece, std::byte* gradient);
  // Clears the residual where this rank does not exchange (Ownership::exchanges()), after adding `part` of it to out,
  // shape().numel float32.
  void move_foreign_residual(float part, std::byte* out);

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
  std::vector<float> owner_residual_;  // the stripes that this rank owns, one after the other
};

}  // namespace sirtaki::compression
