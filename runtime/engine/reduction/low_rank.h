// LowRank: ranks reduce the factors of a matrix instead of the matrix, all matrices of a partition at once.
//
// Two allreduces of float32: the sum of P, which every rank makes orthonormal, then the sum of Q. Two numbers for each
// slice precede P: the number of ranks whose gradient is not finite, and of ranks that have a gradient. The residual is
// written at the very end.
// Source: PowerSGD (Vogels, Karimireddy, Jaggi, 2019); its steps: compression/low_rank_factors.h.
#pragma once

#include "compression/low_rank_factors.h"
#include "runtime/engine/reduction/slices.h"

namespace sirtaki::engine {

class LowRank final : public Reduction {
 public:
  LowRank(ReductionSpec spec, ReductionDeps deps, StageNote note);

 private:
  void begin() override;
  std::size_t phases() const override { return 2; }
  Status project_back();
  Status finish();

  compression::LowRankFactors& factors(const Stripe& stripe) const;
  kernels::Feedback arrays(const Stripe& stripe) const;

  Slices slices_;
  BufferPool::Buffer p_;  // counts, then P of each slice
  BufferPool::Buffer q_;  // Q of each slice
};

}  // namespace sirtaki::engine
