// Selection of whole filters of a convolution: those with the largest norms are sent, the others stay in the residual.
//
// Used by codecs. Threads: pure functions; no allocation. A tensor is `filters` rows of `size` float32 each, one filter
// a row (the axis of the filters is the outermost); all memory may be unaligned. The codec decides the number of
// filters sent.
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
// filter f. Each filter is summed like TwobitStats (kernels/twobit/twobit.h); the mean is divided in float64 and
// rounded once. A filter with a NaN has the norm NaN.
void filter_norms(const FilterShape& shape, const Feedback& arrays, std::byte* norms);

// Writes the ids of the `keep` filters with the largest norms to `ids`, 16 bits each, ascending; 0 <= keep <= filters.
// NaN counts as larger than infinity; of equal norms the lower filter is selected.
void filter_select(std::int64_t filters, std::int64_t keep, const std::byte* norms, std::byte* ids);

// Returns true if `ids` can be the ids of `keep` filters: ascending and in range.
bool filter_ids_valid(std::int64_t filters, std::int64_t keep, const std::byte* ids);

struct FilterIds {
  const std::byte* ids;  // valid
  std::int64_t count;
};

// Copies the selected filters from `values`, which hold a, to `sent`, one after the other, as `value` (float32, float16
// or bfloat16). With take_out, the rounding error of each number (half/sent.h; +0 for float32) replaces it in `values`;
// otherwise `values` is unchanged. Returns true if all numbers sent are finite.
struct FilterGather {
  DType value = DType::kF32;
  bool take_out = true;
};
bool filter_gather(const FilterShape& shape, const FilterIds& chosen, FilterGather how, std::byte* values,
                   std::byte* sent);

struct FilterPart {
  FilterIds chosen;
  const std::byte* sent;  // written by filter_gather()
};

// Writes the sum of the parts, in their order, to `out`; +0 where no part has the filter. NaN results are canonical.
void filter_sum(const FilterShape& shape, DType value, std::span<const FilterPart> parts, std::byte* out);

namespace ref {

// Reference implementations of filter_norms() and filter_gather(), one element at a time; they may allocate.
void filter_norms(const FilterShape& shape, const Feedback& arrays, std::byte* norms);
bool filter_gather(const FilterShape& shape, const FilterIds& chosen, FilterGather how, std::byte* values,
                   std::byte* sent);

}  // namespace ref
}  // namespace sirtaki::kernels
