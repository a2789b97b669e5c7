// Ternary codes on a CUDA device, for all blocks of a tensor at once; see kernels/twobit/twobit.h.
//
// Part of the plug-in (kernels/cuda_kernels.h). Threads, memory, streams: kernels/cuda_launch.h.
// Method: a warp takes 1024 elements, and a ballot gives 32 bits of a plane. Magnitudes are added in the order of the
// reference, so that thresholds chosen here are those of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda_launch.h"
#include "kernels/twobit/twobit.h"

namespace sirtaki::kernels::cuda {

// Elements that a warp encodes.
inline constexpr std::int64_t kTwobitRecord = 1024;

// A tensor of n elements in blocks; the last one may be short. Each block has a threshold of its own. Payload: for each
// block its exponent, an int8, then its planes.
struct TwobitBlocks {
  std::int64_t n;
  std::int64_t block;  // elements, a multiple of kTwobitRecord
};

// The magnitudes of one block, as magnitude() returns them (kernels/magnitude/).
struct TwobitMagnitude {
  double sum;
  float largest;
};
struct TwobitMeasure {
  TwobitBlocks blocks;
  Feedback arrays;
  TwobitMagnitude* magnitudes;  // one per block
};
Launch twobit_measure(const TwobitMeasure& args, Stream stream);

// Chooses exponents (kernels/twobit/exponent.h): of each block alone or, with `whole`, one for the mean magnitude of
// all blocks, which is raised where it could not carry the largest element.
struct TwobitChoose {
  TwobitBlocks blocks;
  TwobitMagnitude* magnitudes;  // one per block, and room for one more, which `whole` uses
  double factor;
  bool whole;
  std::byte* exponents;  // an int8 per block; kTwobitNotFinite if the block, or with `whole` any block, is not finite
};
inline constexpr std::byte kTwobitNotFinite{0x80};
Launch twobit_choose(const TwobitChoose& args, Stream stream);

struct TwobitEncode {
  TwobitBlocks blocks;
  Feedback arrays;
  const std::byte* exponents;  // an int8 per block
  std::byte* payload;          // need not be aligned
  std::uint32_t* not_finite;   // becomes 1 if an exponent is kTwobitNotFinite, else 0
};
Launch twobit_encode(const TwobitEncode& args, Stream stream);

struct TwobitSum {
  TwobitBlocks blocks;
  std::span<const std::byte* const> payloads;  // valid, at most kMostPayloads; the span itself is on the host
  std::byte* out;
  std::int64_t divisor = 1;  // the sums are divided by it, as average() divides
};
Launch twobit_sum(const TwobitSum& args, Stream stream);
Launch load_twobit();

}  // namespace sirtaki::kernels::cuda
