// Selection and sums of whole filters of a convolution on a CUDA device; see kernels/filter/filter.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
// Method: a warp for each filter, one block for the selection among norms, a block for each filter that is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda_launch.h"
#include "kernels/filter/filter.h"

namespace sirtaki::kernels::cuda {

struct FilterNorms {
  FilterShape shape;
  Feedback arrays;
  std::byte* norms;
};
Launch filter_norms(const FilterNorms& args, Stream stream);

struct FilterSelect {
  std::int64_t filters;
  std::int64_t keep;
  const std::byte* norms;
  std::byte* ids;
};
Launch filter_select(const FilterSelect& args, Stream stream);

struct FilterTake {
  FilterShape shape;
  FilterIds chosen;
  FilterGather how;
  std::byte* values;
  std::byte* sent;
  std::uint32_t* not_finite;  // becomes 1 if a number sent is not finite, else 0
};
Launch filter_gather(const FilterTake& args, Stream stream);

struct FilterSum {
  FilterShape shape;
  DType value;
  std::span<const FilterPart> parts;  // at most kMostPayloads; the span is on the host
  std::byte* out;
};
Launch filter_sum(const FilterSum& args, Stream stream);
Launch load_filter();

}  // namespace sirtaki::kernels::cuda
