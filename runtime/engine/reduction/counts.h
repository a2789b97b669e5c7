// Counts: ranks agree on thresholds, owners count the codes of their stripes, and the counts are the result.
//
// There are three exchanges: the maximum of the exponents that ranks propose, after a state byte for each slice; the
// codes, sent to the owners of stripes; integer counts of ceil(log2(2P + 1)) bits, sent to all ranks. A count times the
// threshold is the exact sum, so owners encode nothing again and keep no residual.
// Source: compression/counted_codes.h.
#pragma once

#include "compression/counted_codes.h"
#include "runtime/engine/reduction/owner_blocks.h"

namespace sirtaki::engine {

class Counts final : public Reduction {
 public:
  Counts(ReductionSpec spec, ReductionDeps deps, StageNote note);

 private:
  void begin() override;
  std::size_t phases() const override { return 3; }
  Status send_codes();
  Status read_thresholds();
  Status count();
  Status finish();

  compression::CountedCodes& codes(const Stripe& stripe) const;
  std::byte* exponents(const Stripe& stripe) const { return thresholds_.bytes().data() + exponents_at_[stripe.index]; }
  // Returns the block that `from` has sent to this rank.
  ConstBytes arrived(Rank from) const {
    const std::size_t own = code_blocks_.size(rank());
    return arrived_.bytes().subspan(static_cast<std::size_t>(from) * own, own);
  }

  Slices slices_;
  OwnerBlocks code_blocks_;
  OwnerBlocks count_blocks_;
  std::vector<std::size_t> exponents_at_;  // indexed by stripe
  BufferPool::Buffer thresholds_;          // state bytes of slices, then exponents
  BufferPool::Buffer outgoing_;            // codes, by owner
  BufferPool::Buffer arrived_;             // codes for this owner, by sender
  BufferPool::Buffer results_;             // counts, by owner
};

}  // namespace sirtaki::engine
