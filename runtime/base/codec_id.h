// Codecs and reductions as plans, options and messages name them.
//
// For: all layers, so that a policy can decide on a codec without knowing how it works. Plain values; the numbers are
// part of plans and are never given to another codec or reduction. Not for: what a codec does (compression/), how a
// reduction runs (runtime/engine/reduction/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sirtaki {

// The rows of codecs.inc.
enum class CodecId : std::uint16_t {
#define SRT_DENSE_CODEC(name, Id, number, help) k##Id = (number),
#define SRT_CODEC(name, Id, number, help, sent, keys) k##Id = (number),
#include "runtime/base/codecs.inc"
#undef SRT_CODEC
#undef SRT_DENSE_CODEC
};

// How payloads become one result on all ranks: the rows of reductions.inc.
enum class ReductionKind : std::uint16_t {
#define SRT_REDUCTION(name, Id, number, most_ranks) k##Id = (number),
#include "runtime/base/reductions.inc"
#undef SRT_REDUCTION
};

// Places of a decision's parameters, integers all. Parts are in 1/65536 where not said otherwise. Every codec with
// error feedback has kFeedback: 1 keeps what is not sent for the next step, 0 drops it.
namespace params {

inline constexpr std::int64_t kOne = 65536;
inline constexpr std::size_t kFeedback = 0;

// int8, fp8 (e4m3, e5m2), onebit
inline constexpr std::size_t kBlock = 1;  // elements that share a scale; of onebit a multiple of 64

// twobit: t is the power of two below kFactor times the mean magnitude of the whole tensor or of each 2,048 elements
inline constexpr std::size_t kFactor = 1;
inline constexpr std::size_t kByStripe = 2;

// group_topk
inline constexpr std::size_t kGroup = 1;
inline constexpr std::size_t kKeep = 2;      // elements of each group
inline constexpr std::size_t kValue = 3;     // DType of values: float32, float16, bfloat16
inline constexpr std::size_t kMomentum = 4;  // factor of momentum correction; 0: none
inline constexpr std::size_t kNesterov = 5;
// May be left out together: no warm-up.
inline constexpr std::size_t kWarmSteps = 6;  // of the training, in which more travels
inline constexpr std::size_t kWarmFirst = 7;  // in the first one: elements of each group, or part as kDensity

// threshold_sparse (from kValue on as above)
inline constexpr std::size_t kDensity = 1;     // part of the elements that should travel
inline constexpr std::size_t kReestimate = 2;  // uses between exact thresholds

// kernel_sparse (kValue as above, kBlock 0): kFilters filters of the tensor; block_topk: kFilters blocks of kBlock
// elements
inline constexpr std::size_t kFilters = 2;

// powersgd
inline constexpr std::size_t kRank = 1;
inline constexpr std::size_t kWarmStart = 2;

}  // namespace params

// The factor of momentum correction that a codec with these parameters makes, in 1/65536; 0: none. What it sends are
// then steps of SGD with momentum, to which an optimizer adds none of its own.
constexpr std::int64_t corrected_momentum(CodecId codec, std::span<const std::int64_t> values) {
  const bool may = codec == CodecId::kGroupTopk || codec == CodecId::kThresholdSparse;
  return may && values.size() > params::kMomentum ? values[params::kMomentum] : 0;
}

}  // namespace sirtaki
