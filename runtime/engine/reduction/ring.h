// Ring: sparse sums go round a ring and grow on their way, dense from where that is shorter; then all get all of them.
//
// P + 1 exchanges. First the headers, in which every rank says how many elements it has in each cell, so that all know
// how long every later message is. Then P - 1 hops: the cells of owner c begin at rank c + 1, and each rank adds its
// own elements and passes them on, until they reach c. Then owners send their cells to all.
// A cell travels as a sparse payload (kernels/sparse_sum/) with room for what the ranks before have in it together, or
// as float32 where that is no longer. Sums are float32, ((a[c+1] + a[c+2]) + ...) + a[c], whatever values the codec
// sends; all ranks take the owner's. Nothing is selected again, so owners owe nothing.
// Sources: group selection with a ring (Wang, Ma, Peng, patent, 2024); the change from sparse to dense (Renggli et al.,
// SparCML, 2019).
#pragma once

#include <vector>

#include "runtime/engine/reduction/slices.h"

namespace sirtaki::engine {

class Ring final : public Reduction {
 public:
  // Headers, hops and the end.
  static constexpr int kMostRanks = static_cast<int>(kStreamPhases) - 1;

  Ring(ReductionSpec spec, ReductionDeps deps, StageNote note);

 private:
  // What one rank sums up last: a stripe, or its share where the stripe is the whole tensor.
  struct Cell {
    std::size_t slice;
    std::int64_t numel;
    std::size_t at;  // in the stripes' elements, bytes
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
  // Elements that so many ranks behind the owner have in the cell, at most.
  std::int64_t capacity(std::size_t cell, int ranks) const;
  bool dense(std::size_t cell, int ranks) const;
  std::size_t bytes_of(std::size_t cell, int ranks) const;
  std::size_t bytes_of_owner(Rank owner, int ranks) const;
  std::byte* elements(const Cell& cell) const { return elements_.bytes().data() + cell.at; }
  void write(std::size_t cell, int ranks, Bytes out) const;
  // kCorrupt: no rank writes that.
  Status check(std::size_t cell, int ranks, Rank from, ConstBytes in) const;
  // The elements: those of `in`, or those of memory of this size behind it.
  void read(std::size_t cell, int ranks, ConstBytes in, std::byte* out) const;

  Slices slices_;
  std::vector<Cell> cells_;
  std::vector<std::vector<std::uint32_t>> entries_;  // by rank, by cell
  BufferPool::Buffer headers_;                       // by rank: slices' flags, then entries
  BufferPool::Buffer elements_;                      // float32, of all stripes: own ones, then sums
  BufferPool::Buffer outgoing_;
  BufferPool::Buffer arrived_;
  BufferPool::Buffer results_;  // by owner
};

}  // namespace sirtaki::engine
