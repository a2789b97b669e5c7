// Scatter: stripes go to their owners, who sum them in rank order, encode the sums again and send those to all.
//
// Two exchanges; 2 (P - 1) / P payloads leave a rank, as with a dense allreduce. What the second encoding leaves is the
// owner's residual, added to its next sum.
// Source: double squeeze (Tang et al., DoubleSqueeze, 2019), with every rank the server of its own stripes.
#pragma once

#include "runtime/engine/recipes/slices.h"

namespace sirtaki::engine {

class Scatter final : public Reduction {
 public:
  Scatter(ReductionSpec spec, ReductionDeps deps, StageNote note);

 private:
  void begin() override;
  std::size_t phases() const override { return 2; }
  Status reduce();
  bool sum_own(const Stripe& stripe, std::size_t at, std::byte* sums);
  void encode_own(const Stripe& stripe, std::byte* sums, Bytes payload);
  Status finish();

  bool own(const Stripe& stripe) const { return stripe.owner == rank(); }
  std::int64_t own_bytes() const { return block_bytes_[static_cast<std::size_t>(rank())]; }
  ConstBytes arrived(Rank from, std::size_t at, std::size_t bytes) const {
    return arrived_.bytes().subspan(static_cast<std::size_t>(from) * static_cast<std::size_t>(own_bytes()) + at, bytes);
  }

  Slices slices_;
  std::vector<std::int64_t> block_bytes_;  // by owner: header, then the payloads of its stripes
  std::vector<std::size_t> block_at_;      // where the block stands behind those of smaller owners
  BufferPool::Buffer outgoing_;            // blocks by owner
  BufferPool::Buffer arrived_;             // blocks of this owner, by sender
  BufferPool::Buffer sums_;                // float32, own stripes; then what their encoding leaves
  BufferPool::Buffer results_;             // blocks by owner
};

}  // namespace sirtaki::engine
