// Ids of codecs and reduction algorithms in plans, options and messages.
//
// Used by all layers, so that a policy can choose a codec without access to its code. Plain values; the numbers are
// part of plans and are never given to another codec or algorithm. Codecs are in compression/, reduction algorithms in
// runtime/engine/reduction/.
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

// Algorithms that turn the payloads of all ranks into one result on all of them: the rows of reductions.inc.
enum class ReductionKind : std::uint16_t {
#define SRT_REDUCTION(name, Id, number, most_ranks) k##Id = (number),
#include "runtime/base/reductions.inc"
#undef SRT_REDUCTION
};

// Places of the parameters of a decision, all integers. Shares are in units of 1/65536. Every codec with error feedback
// has kFeedback: 1 keeps the part not sent for the next step, 0 drops it.
namespace params {

inline constexpr std::int64_t kOne = 65536;
inline constexpr std::size_t kFeedback = 0;

// int8, int4, fp8 (e4m3, e5m2), onebit
inline constexpr std::size_t kBlock = 1;  // elements that share a scale; a multiple of 64 for onebit

// twobit: t is the power of two below kFactor times the mean magnitude of the whole tensor or of each 2,048 elements
inline constexpr std::size_t kFactor = 1;
inline constexpr std::size_t kByStripe = 2;

// group_topk
inline constexpr std::size_t kGroup = 1;
inline constexpr std::size_t kKeep = 2;      // elements of each group
inline constexpr std::size_t kValue = 3;     // DType of values: float32, float16, bfloat16
inline constexpr std::size_t kMomentum = 4;  // factor of momentum correction; 0: none
inline constexpr std::size_t kNesterov = 5;
// Density warm-up; both are omitted without it.
inline constexpr std::size_t kWarmSteps = 6;  // number of training steps that send more
inline constexpr std::size_t kWarmFirst = 7;  // elements of each group in the first step, or a share like kDensity

// threshold_sparse (from kValue on as above)
inline constexpr std::size_t kDensity = 1;     // share of the elements to send
inline constexpr std::size_t kReestimate = 2;  // uses between exact thresholds

// kernel_sparse (kValue as above, kBlock 0): kFilters filters of the tensor; block_topk: kFilters blocks of kBlock
// elements
inline constexpr std::size_t kFilters = 2;

// powersgd
inline constexpr std::size_t kRank = 1;
inline constexpr std::size_t kWarmStart = 2;

}  // namespace params

// Returns the factor of momentum correction of a codec with these parameters, in 1/65536; 0 without correction. With
// it, the payloads are steps of SGD with momentum, to which the optimizer must not add momentum.
constexpr std::int64_t corrected_momentum(CodecId codec, std::span<const std::int64_t> values) {
  const bool may = codec == CodecId::kGroupTopk || codec == CodecId::kThresholdSparse;
  return may && values.size() > params::kMomentum ? values[params::kMomentum] : 0;
}

}  // namespace sirtaki
