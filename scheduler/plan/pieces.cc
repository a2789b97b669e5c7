#include "scheduler/plan/pieces.h"

#include <algorithm>

#include "scheduler/plan/arith.h"

namespace sirtaki::scheduler {

Kind kind_of(const PlannedTensor& tensor) {
  return {tensor.dtype, tensor.decision.codec, tensor.decision.reduction};
}

bool few_elements(const PlannedTensor& tensor, std::int64_t numel) {
  return !tensor.decision.format().compressed() || numel <= kMaxCompressedElements;
}

Pieces::Pieces(const PlannedTensor& tensor, int index, std::int64_t alignment, std::int64_t most)
    : index_(index),
      numel_(tensor.numel),
      border_(border_of(tensor, alignment)),
      blocks_(divide_up(numel_, border_)),
      count_(divide_up(blocks_, std::max<std::int64_t>(most / border_, 1))) {}

std::int64_t Pieces::begin_of(std::int64_t i) const {
  return std::min((i * (blocks_ / count_) + std::min(i, blocks_ % count_)) * border_, numel_);
}

Slice Pieces::slice(std::int64_t i) const {
  const std::int64_t begin = begin_of(i);
  return {index_, begin, begin_of(i + 1) - begin, 0};
}

Partition make_partition(const std::vector<PlannedTensor>& tensors, std::span<const Slice> slices) {
  const PlannedTensor& first = tensors[static_cast<std::size_t>(slices.front().tensor)];
  Partition partition;
  partition.dtype = first.dtype;
  partition.format = first.decision.format();
  for (const Slice& slice : slices) {
    partition.numel += slice.numel;
  }
  partition.slices.assign(slices.begin(), slices.end());
  return partition;
}

}  // namespace sirtaki::scheduler
