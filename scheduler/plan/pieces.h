// Pieces: the rules that both layouts (first_layout.h, planner_layout.h) share: the tensors that may share a partition,
// and the borders of a tensor that is too large for one.
//
// Pure functions and values, internal to scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "scheduler/plan/plan.h"

namespace sirtaki::scheduler {

// Tensors of the same kind may share a partition.
using Kind = std::tuple<DType, CodecId, ReductionKind>;
Kind kind_of(const PlannedTensor& tensor);

// Returns true if one partition may hold so many elements of the tensor.
bool few_elements(const PlannedTensor& tensor, std::int64_t numel);

// Cuts a tensor into nearly equal pieces of at most `most` elements, or as short as the tensor may be cut. Equal pieces
// leave no small rest, which would cost a round trip of its own. Keeps no reference.
class Pieces {
 public:
  // `index` is the place of the tensor in its list. Requires a tensor with elements.
  Pieces(const PlannedTensor& tensor, int index, std::int64_t alignment, std::int64_t most);

  std::int64_t count() const { return count_; }
  // Returns piece i as a slice that is alone in its partition.
  Slice slice(std::int64_t i) const;

 private:
  std::int64_t begin_of(std::int64_t i) const;

  int index_;
  std::int64_t numel_;
  std::int64_t border_;
  std::int64_t blocks_;
  std::int64_t count_;
};

// Returns a partition of these slices, one behind the other. Requires at least one slice.
Partition make_partition(const std::vector<PlannedTensor>& tensors, std::span<const Slice> slices);

}  // namespace sirtaki::scheduler
