// Group top-k on a CUDA device: the selection of kernels/group_topk/group_topk.h in one pass over memory.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
// Method: keys of a group stay in the registers of a warp (four warps above 1024 elements; in memory above 4096), and
// counting passes over them find the limit (search.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda_launch.h"
#include "kernels/group_topk/group_topk.h"

namespace sirtaki::kernels::cuda {

struct GroupTopkEncode {
  GroupTopk how;
  std::int64_t n;
  Feedback arrays;
  std::byte* payload;
  std::uint32_t* not_finite;  // becomes 1 if a number sent is not finite, else 0
};
Launch group_topk_encode(const GroupTopkEncode& args, Stream stream);

struct GroupTopkSum {
  GroupTopk how;
  std::int64_t n;
  std::span<const std::byte* const> payloads;  // at most kMostPayloads; the span itself is on the host
  std::byte* out;
  std::int64_t divisor = 1;  // the sums are divided by it, as average() divides
};
Launch group_topk_sum(const GroupTopkSum& args, Stream stream);
Launch load_group_topk();

}  // namespace sirtaki::kernels::cuda
