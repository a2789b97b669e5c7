// Ring: sparse sums travel round a ring and grow with every hop; a sum becomes dense once that is shorter. An allgather
// ends the reduction.
//
// There are P + 1 exchanges:
//   1. Headers, in which every rank counts its elements in each cell, so that all ranks know the length of every later
//      message.
//   2. P - 1 hops: the cells of owner c begin at rank c + 1; each rank adds its own elements and passes them on until
//      they reach c.
//   3. The owners send their cells to all ranks.
//
// A cell travels as a sparse payload (kernels/sparse_sum/) with room for the elements of all ranks so far, or as
// float32 if that is not longer. Sums are float32, ((a[c+1] + a[c+2]) + ...) + a[c], whatever value type the codec
// sends; all ranks use the sum of the owner. Owners select nothing again, so they keep no residual.
// Sources: group selection with a ring (Wang, Ma, Peng, patent, 2024); the change from sparse to dense (Renggli et al.,
// SparCML, 2019).
#pragma once

#include <vector>

#include "runtime/engine/reduction/slices.h"

namespace sirtaki::engine {

class Ring final : public Reduction {
 public:
  // Headers, hops and the final allgather take one phase each.
  static constexpr int kMostRanks = static_cast<int>(kStreamPhases) - 1;

  Ring(ReductionSpec spec, ReductionDeps deps, StageNote note);

 private:
  // The elements that one owner sums last: a stripe, or a share of it if the stripe is the whole tensor.
  struct Cell {
    std::size_t slice;
    std::int64_t numel;
    std::size_t at;  // byte offset in elements_
    Rank owner;
  };

  void begin() override;
  std::size_t phases() const override { return static_cast<std::size_t>(size()) + 1; }
  void add_cells(const Stripe& stripe, std::size_t at);
  void write_entries(Bytes header) const;
  Status read_headers();
  Status hop(int number);
  Status add_arrived(int number);
  Status collect();
  Status finish();

  Rank rank_at(int place) const { return static_cast<Rank>((place % size() + size()) % size()); }
  std::size_t entries_bytes() const { return cells_.size() * sizeof(std::uint32_t); }
  // Returns an upper bound of the elements in the cell after `ranks` ranks behind the owner have added theirs.
  std::int64_t capacity(std::size_t cell, int ranks) const;
  bool dense(std::size_t cell, int ranks) const;
  std::size_t bytes_of(std::size_t cell, int ranks) const;
  std::size_t bytes_of_owner(Rank owner, int ranks) const;
  std::byte* elements(const Cell& cell) const { return elements_.bytes().data() + cell.at; }
  void write(std::size_t cell, int ranks, Bytes out) const;
  // Validates a received cell; kCorrupt if no rank can have written it.
  Status check(std::size_t cell, int ranks, Rank from, ConstBytes in) const;
  // Decodes a received cell into dense float32 at `out`.
  void read(std::size_t cell, int ranks, ConstBytes in, std::byte* out) const;

  Slices slices_;
  std::vector<Cell> cells_;
  std::vector<std::vector<std::uint32_t>> entries_;  // indexed by rank, then cell
  BufferPool::Buffer headers_;                       // per rank: flags of slices, then entries
  BufferPool::Buffer elements_;                      // float32 of all stripes: own elements, then sums
  BufferPool::Buffer outgoing_;
  BufferPool::Buffer arrived_;
  BufferPool::Buffer results_;  // blocks by owner
};

}  // namespace sirtaki::engine
