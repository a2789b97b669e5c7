// Gather: every rank sends its payload to all, and each rank sums all payloads in rank order.
//
// One exchange; P - 1 payloads leave a rank. Suits few ranks, and payloads whose sum would not be shorter than their
// concatenation.
// Source: gradient compression over all-gather (Xu et al., GRACE, 2021).
#pragma once

#include "runtime/engine/reduction/slices.h"

namespace sirtaki::engine {

class Gather final : public Reduction {
 public:
  Gather(ReductionSpec spec, ReductionDeps deps, StageNote note);

 private:
  void begin() override;
  std::size_t phases() const override { return 1; }
  Status finish();
  Bytes block(Rank rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return memory_.bytes().subspan(block_at_[r], block_at_[r + 1] - block_at_[r]);
  }

  Slices slices_;
  std::vector<std::size_t> block_at_;  // indexed by rank; a block is a header, then payloads
  BufferPool::Buffer memory_;
};

}  // namespace sirtaki::engine
