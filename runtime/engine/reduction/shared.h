// Shared: ranks reduce the norms of all blocks, select the same blocks by them, and reduce the values of those blocks.
//
// Two allreduces of float32: the norms, preceded by two numbers for each slice that count the ranks with a gradient;
// then the values of the selected blocks, without their indices. Blocks that are not selected stay in the residual of
// each rank.
// Sources: coarse-grained sparse communication (Sun et al., GradientFlow, 2019); a choice that ranks agree on, with
// error feedback: CLT-k (Chen et al., ScaleCom, 2020).
#pragma once

#include <vector>

#include "compression/block_selection.h"
#include "runtime/engine/reduction/slices.h"

namespace sirtaki::engine {

class Shared final : public Reduction {
 public:
  Shared(ReductionSpec spec, ReductionDeps deps, StageNote note);

 private:
  void begin() override;
  std::size_t phases() const override { return 2; }
  Status choose();
  Status finish();

  // The selection for a stripe, which is a whole tensor, and its offsets in norms_, ids_ and values_.
  struct Place {
    compression::BlockSelection selection;
    std::size_t norms;
    std::size_t ids;
    std::size_t values;
  };
  bool norms_are_possible(const Place& place) const;
  std::byte* norms(const Place& place) const { return norms_.bytes().data() + place.norms; }
  std::byte* ids(const Place& place) const { return ids_.bytes().data() + place.ids; }
  std::byte* values(const Place& place) const { return values_.bytes().data() + place.values; }

  Slices slices_;
  std::vector<Place> places_;  // indexed by stripe
  BufferPool::Buffer norms_;   // counts, then the norms of all stripes
  BufferPool::Buffer ids_;
  BufferPool::Buffer values_;
};

}  // namespace sirtaki::engine
