// Selection of the largest keys of a group by a warp or a block: the exchange between its threads, and a selection
// among values in memory.
//
// Used by CUDA kernels. All threads of the team call the functions together.
#pragma once

#include <cstdint>

#include "kernels/device.cuh"
#include "kernels/group_topk/search.h"

namespace sirtaki::kernels::cuda {

// Reductions over kWarps warps; several warps are the whole block.
template <int kWarps>
class TeamExchange {
 public:
  // scratch: 2 kWarps words that the team shares; unused by a single warp.
  __device__ explicit TeamExchange(std::uint32_t* scratch) : scratch_(scratch) {}

  __device__ std::uint32_t sum(std::uint32_t value) {
    return over_warps(warp_sum(value), [](std::uint32_t a, std::uint32_t b) { return a + b; });
  }
  __device__ std::uint32_t min(std::uint32_t value) {
    return over_warps(warp_min(value), [](std::uint32_t a, std::uint32_t b) { return a < b ? a : b; });
  }
  __device__ std::uint32_t max(std::uint32_t value) {
    return over_warps(warp_max(value), [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
  }

  // Returns the number of elements that the preceding warps take, given the numbers `above` and `equal` of this warp
  // (the same in all lanes) and that the first `quota` equal ones are taken; `quota` becomes the share left for this
  // warp.
  __device__ std::int32_t before_this_warp(std::int32_t above, std::int32_t equal, std::int32_t& quota) {
    std::uint32_t* const words = next();
    if (lane() == 0) {
      words[warp()] = static_cast<std::uint32_t>(above) << 16 | static_cast<std::uint32_t>(equal);
    }
    __syncthreads();
    std::int32_t taken = 0;
    for (unsigned w = 0; w < warp(); ++w) {
      const auto equal_there = static_cast<std::int32_t>(words[w] & 0xFFFFU);
      const std::int32_t equal_taken = lesser(equal_there, quota);
      taken += static_cast<std::int32_t>(words[w] >> 16) + equal_taken;
      quota -= equal_taken;
    }
    return taken;
  }

  // Counts the flags of the preceding threads, and of all.
  __device__ Ranks ranks(bool flag) {
    const unsigned ballot = __ballot_sync(kAll, flag);
    std::uint32_t* const words = next();
    if (lane() == 0) {
      words[warp()] = static_cast<std::uint32_t>(__popc(ballot));
    }
    __syncthreads();
    Ranks ranks{__popc(ballot & lanes_below()), 0};
    for (unsigned w = 0; w < kWarps; ++w) {
      ranks.before += w < warp() ? static_cast<std::int32_t>(words[w]) : 0;
      ranks.all += static_cast<std::int32_t>(words[w]);
    }
    return ranks;
  }

 private:
  // Alternates between two sets of words, so that one barrier per reduction is enough.
  __device__ std::uint32_t* next() {
    turn_ ^= 1U;
    return scratch_ + turn_ * kWarps;
  }
  template <class Combine>
  __device__ std::uint32_t over_warps(std::uint32_t of_warp, Combine combine) {
    if constexpr (kWarps == 1) {
      return of_warp;
    } else {
      std::uint32_t* const words = next();
      if (lane() == 0) {
        words[warp()] = of_warp;
      }
      __syncthreads();
      std::uint32_t all = words[0];
      for (int w = 1; w < kWarps; ++w) {
        all = combine(all, words[w]);
      }
      return all;
    }
  }

  std::uint32_t* scratch_;
  unsigned turn_ = 0;
};

// Counts flags, up to four in the lowest bits of each lane: those of lower lanes, and of all.
__device__ inline Ranks lane_ranks(unsigned flags) {
  Ranks ranks{0, 0};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const unsigned ballot = __ballot_sync(kAll, (flags >> j & 1U) != 0);
    ranks.before += __popc(ballot & lanes_below());
    ranks.all += __popc(ballot);
  }
  return ranks;
}

// Selects the `keep` largest magnitudes of `elements` float32 in memory, in the order of group_topk_encode(), by one
// block.
template <int kWarps>
struct BlockTopk {
  const float* values;
  std::int32_t elements;
  std::int32_t keep;
  std::uint32_t most;  // the largest key that this thread has seen of values[thread + i * threads]

  // Calls emit(element, position) for each selected element, on some thread of the block; `emit` may write to that
  // value. scratch: 2 kWarps words of shared memory. Begins and ends with a barrier.
  template <class Emit>
  __device__ void select(std::uint32_t* scratch, Emit emit) const {
    __syncthreads();
    TeamExchange<kWarps> exchange(scratch);
    const std::uint32_t low = keep <= kThreads ? exchange.min(most) : 0;
    const TopkBracket bracket{low, exchange.max(most) + 1, low == 0 ? elements : 0, 0};
    const TopkLimit limit = topk_limit(bracket, keep, [&](std::uint32_t probe) {
      std::uint32_t reached = 0;
      for (std::int32_t i = thread(); i < elements; i += kThreads) {
        reached += key(i) >= probe ? 1 : 0;
      }
      return static_cast<std::int32_t>(exchange.sum(reached));
    });
    std::int32_t position = 0;
    std::int32_t equal = limit.equal;
    for (std::int32_t first = 0; first < elements; first += kThreads) {
      const std::int32_t i = first + thread();
      const bool present = i < elements;
      const std::uint32_t here = present ? key(i) : 0;
      bool taken = present && here > limit.key;
      if (equal > 0) {
        const bool same = present && here == limit.key;
        const Ranks ranks = exchange.ranks(same);
        taken = taken || (same && ranks.before < equal);
        equal -= lesser(ranks.all, equal);
      }
      const Ranks ranks = exchange.ranks(taken);
      if (taken) {
        emit(i, position + ranks.before);
      }
      position += ranks.all;
    }
    __syncthreads();
  }

 private:
  static constexpr std::int32_t kThreads = kWarps * static_cast<std::int32_t>(kLanes);

  __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }
  __device__ std::uint32_t key(std::int32_t i) const { return ref::magnitude_bits(ref::canonical(values[i])); }
};

}  // namespace sirtaki::kernels::cuda
