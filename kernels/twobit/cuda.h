// Ternary codes on a CUDA device, for all stripes of a tensor at once; see kernels/twobit/twobit.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
// Method: a warp takes 1024 elements, and a ballot gives 32 bits of a plane; statistics are collected in records of
// 1024 elements, which are added in the order of the reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda_launch.h"
#include "kernels/twobit/twobit.h"

namespace sirtaki::kernels::cuda {

inline constexpr std::int64_t kTwobitRecord = 1024;

// A tensor of n elements in stripes, each encoded on its own; the last one may be short.
struct TwobitStripes {
  std::int64_t n;
  std::int64_t stripe;  // elements, a multiple of kTwobitRecord
  std::size_t pitch;    // distance in bytes between the planes of consecutive stripes; need not be aligned
};

struct TwobitRecord {
  float sums[16];
  std::int32_t sent;
  std::uint32_t not_finite;
};

struct TwobitEncode {
  TwobitStripes stripes;
  Feedback arrays;
  const std::int32_t* exponents;  // one per stripe, in the range of twobit_encode()
  std::byte* planes;
  TwobitStats* stats;     // one per stripe
  TwobitRecord* records;  // scratch memory: one record for every kTwobitRecord elements, rounded up
};
Launch twobit_encode(const TwobitEncode& args, Stream stream);

struct TwobitSource {
  const std::byte* planes;        // valid; the span that holds the sources is on the host
  const std::int32_t* exponents;  // one per stripe
};

struct TwobitSum {
  TwobitStripes stripes;
  std::span<const TwobitSource> parts;  // at most kMostPayloads
  std::byte* out;
};
Launch twobit_sum(const TwobitSum& args, Stream stream);

// Computes twobit_count(): `exponents` are not used, and there are at most 127 parts; `out` holds int8.
Launch twobit_count(const TwobitSum& args, Stream stream);

struct TwobitFromCounts {
  TwobitStripes stripes;          // its pitch is not used
  const std::int32_t* exponents;  // one per stripe
  const std::byte* counts;
  std::byte* out;
};
Launch twobit_from_counts(const TwobitFromCounts& args, Stream stream);
Launch load_twobit();

}  // namespace sirtaki::kernels::cuda
