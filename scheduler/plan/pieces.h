// Pieces: what the two layouts (first_layout.h, planner_layout.h) have in common: which tensors may share a partition,
// and where one that is too large for a partition is cut.
//
// Used inside scheduler only. Pure functions and values.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "scheduler/plan/plan.h"

namespace sirtaki::scheduler {

// Tensors of one kind may share a partition.
using Kind = std::tuple<DType, CodecId, ReductionKind>;
Kind kind_of(const PlannedTensor& tensor);

// Whether so many of the tensor's elements may be in one partition.
bool few_elements(const PlannedTensor& tensor, std::int64_t numel);

// A tensor in nearly equal pieces of at most `most` elements, or as short as it may be cut: no small rest that costs a
// round trip of its own. Keeps no reference.
class Pieces {
 public:
  // `index`: of the tensor in its list; it has elements.
  Pieces(const PlannedTensor& tensor, int index, std::int64_t alignment, std::int64_t most);

  std::int64_t count() const { return count_; }
  // The i-th, alone in a partition.
  Slice slice(std::int64_t i) const;

 private:
  std::int64_t begin_of(std::int64_t i) const;

  int index_;
  std::int64_t numel_;
  std::int64_t border_;
  std::int64_t blocks_;
  std::int64_t count_;
};

// A partition of these slices, one behind the other; there is one.
Partition make_partition(const std::vector<PlannedTensor>& tensors, std::span<const Slice> slices);

}  // namespace sirtaki::scheduler
