// Whole filters of a convolution travel, those of the largest norm; the other filters wait.
//
// For: codecs. Threads: pure functions; no allocation. A tensor is `filters` rows of `size` float32 each, a filter a
// row (so the axis of the filters is the outermost); all memory may be unaligned. Not for: how many filters travel.
// Method: selection of important convolution kernels (Hylo: Hybrid Layer-Based Optimization to Reduce Communication in
// Distributed Deep Learning), by the mean magnitude of gradient and residual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"
#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

struct FilterShape {
  std::int64_t filters;  // 0 to 65536
  std::int64_t size;     // elements of a filter: >= 1
};

// Writes a = gradient + residual to `left` (nothing without residual) and norms[f], a float32: the mean of |a| over
// filter f. The sum is that of TwobitStats (kernels/twobit/twobit.h), for each filter on its own; divided in float64
// and rounded once. A filter with a NaN has the norm NaN.
void filter_norms(const FilterShape& shape, const Feedback& arrays, std::byte* norms);

// ids, each 16 bits: the `keep` filters with the largest norms, ascending; 0 <= keep <= filters. NaN goes before
// infinity; of equal norms the lower filter goes first.
void filter_select(std::int64_t filters, std::int64_t keep, const std::byte* norms, std::byte* ids);

// Whether these can be the ids of `keep` filters: they ascend and exist.
bool filter_ids_valid(std::int64_t filters, std::int64_t keep, const std::byte* ids);

struct FilterIds {
  const std::byte* ids;  // valid
  std::int64_t count;
};

// Takes the filters out of `values`, which hold a: `sent` gets them one behind the other as `value` (float32, float16
// or bfloat16). With take_out, what is left of them (half/sent.h; +0 for float32) replaces them in `values`; otherwise
// these stay as they are. True when all numbers sent are finite.
struct FilterGather {
  DType value = DType::kF32;
  bool take_out = true;
};
bool filter_gather(const FilterShape& shape, const FilterIds& chosen, FilterGather how, std::byte* values,
                   std::byte* sent);

struct FilterPart {
  FilterIds chosen;
  const std::byte* sent;  // as filter_gather() wrote it
};

// out = the sum of the parts in their order, +0 where they hold nothing. A NaN that comes out is always the same one.
void filter_sum(const FilterShape& shape, DType value, std::span<const FilterPart> parts, std::byte* out);

namespace ref {

// The meaning of the functions above, one element at a time; may allocate.
void filter_norms(const FilterShape& shape, const Feedback& arrays, std::byte* norms);
void filter_select(std::int64_t filters, std::int64_t keep, const std::byte* norms, std::byte* ids);
bool filter_gather(const FilterShape& shape, const FilterIds& chosen, FilterGather how, std::byte* values,
                   std::byte* sent);
void filter_sum(const FilterShape& shape, DType value, std::span<const FilterPart> parts, std::byte* out);

}  // namespace ref
}  // namespace sirtaki::kernels
