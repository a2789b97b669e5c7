// Scatter: stripes go to their owners, which sum them in rank order, encode the sums again and send them to all.
//
// Two exchanges; 2 (P - 1) / P payloads leave a rank, as with a dense allreduce. The error of the second encoding is
// the residual of the owner, which adds it to its next sum.
// Source: double squeeze (Tang et al., DoubleSqueeze, 2019), with every rank the server of its own stripes.
#pragma once

#include "runtime/engine/reduction/owner_blocks.h"

namespace sirtaki::engine {

class Scatter final : public Reduction {
 public:
  Scatter(ReductionSpec spec, ReductionDeps deps, StageNote note);

 private:
  void begin() override;
  std::size_t phases() const override { return 2; }
  Status reduce();
  Status check_arrived();
  bool sum_own(const Stripe& stripe, std::byte* sums);
  void encode_own(const Stripe& stripe, std::byte* sums, Bytes payload);
  Status finish();

  bool own(const Stripe& stripe) const { return stripe.owner == rank(); }
  // Returns the block that `from` has sent to this rank.
  ConstBytes arrived(Rank from) const {
    return arrived_.bytes().subspan(static_cast<std::size_t>(from) * blocks_.size(rank()), blocks_.size(rank()));
  }

  Slices slices_;
  OwnerBlocks blocks_;           // header, then payloads
  BufferPool::Buffer outgoing_;  // blocks by owner
  BufferPool::Buffer arrived_;   // blocks for this owner, by sender
  BufferPool::Buffer sums_;      // float32 of own stripes; then the error of encoding them
  BufferPool::Buffer results_;   // blocks by owner
};

}  // namespace sirtaki::engine
