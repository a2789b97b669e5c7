// StepProfile: measurements of the steps of a stream, as integers that are equal on all ranks after an exchange.
//
// Used by the planner. Every rank measures its own profile and writes it as a vector. An all-reduce with MAX over the
// vectors gives values that hold for all ranks: the latest ready time and the earliest need time of each tensor, the
// smallest latency and bandwidth, the longest step, the gravest objection. The smallest latency counts because an
// all-reduce takes as long as the slowest link on every rank, and on an early rank also includes the wait for the
// others: the smallest measured value is the nearest to the truth. Decisions use integer arithmetic only, so all ranks
// decide alike.
// Pure value: no I/O, no thread, no clock. LinkMeter (link_meter.h) measures the link; the stream does the exchange.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/codec_id.h"
#include "runtime/base/status.h"

namespace sirtaki::scheduler {

// Codecs whose compute time enters the model, and the time of one element: encode_ps before the payload is sent,
// decode_ps after, in picoseconds, on one rank.
inline constexpr std::array kTimedCodecs = {
    CodecId::kInt8,    CodecId::kInt4, CodecId::kTwobit, CodecId::kGroupTopk, CodecId::kThresholdSparse,
    CodecId::kPowerSgd};
struct CodecCost {
  std::int64_t encode_ps = 0;
  std::int64_t decode_ps = 0;

  friend bool operator==(const CodecCost&, const CodecCost&) = default;
};
using CodecCosts = std::array<CodecCost, kTimedCodecs.size()>;

// Latency of one exchange from which hosts count as distant: bytes then often take less time than the way.
inline constexpr std::int64_t kDistantNs = 1'000'000;
// Returns the latency if it is that of distant hosts, else 0.
constexpr std::int64_t distant_latency(std::int64_t latency_ns) {
  return latency_ns < kDistantNs ? 0 : latency_ns;
}

// Durations are means over the steps since the previous profile that ran with the present plan. Lists are indexed by
// tensor. A step lasts from the end of the previous one to its own end.
struct StepProfile {
  static constexpr std::int64_t kUnknown = -1;

  std::vector<std::int64_t> ready_us;  // since the first ready() of the step
  // Since finish(), without waits. kUnknown: the program does not wait for this tensor alone.
  std::vector<std::int64_t> need_us;
  std::int64_t backward_us = 0;              // first ready() to finish()
  std::int64_t forward_us = 0;               // rest of the step, without backward pass and waits
  std::int64_t step_us = 0;                  // measured from the end of the previous step
  std::int64_t exposed_us = 0;               // the part in which the program waited for the stream
  std::int64_t latency_ns = kUnknown;        // latency of one exchange without bytes; kUnknown: not measured
  std::int64_t bytes_per_second = kUnknown;  // payload, one way
  CodecCosts codec_costs = {};               // on the slowest rank; 0: not measured
  // Filled if a policy asks for losses, indexed by rank: running mean of the loss in millionths; kUnknown: not
  // reported.
  std::vector<std::int64_t> losses = {};
  std::int64_t objection = 0;  // objection of a rank to any other plan (replanner.h); 0: none

  bool distant() const { return latency_ns >= kDistantNs; }
  bool knows_link() const { return latency_ns >= 0 && bytes_per_second > 0; }
  // Returns zeros for a codec that is not timed.
  CodecCost cost_of(CodecId codec) const;

  friend bool operator==(const StepProfile&, const StepProfile&) = default;
};

// Returns the profile of a link alone, for tensors that are all ready at once and needed at the end.
StepProfile all_at_once(StepProfile link, std::size_t tensors);

// Returns the number of values of the vector of a stream with so many tensors and losses.
std::size_t max_vector_size(std::size_t tensors, std::size_t losses = 0);

// Returns the vector for the reduction with MAX. Values out of range are clamped, so a wild measurement cannot spoil
// the arithmetic; missing list entries count as 0 or kUnknown. Its size is max_vector_size(ready_us.size(),
// losses.size()).
std::vector<std::int64_t> to_max_vector(const StepProfile& profile);

// Returns the profile of a reduced vector. kMismatch: ranks wrote different formats or numbers of tensors; kCorrupt: a
// wrong size or a value out of range.
Result<StepProfile> from_max_vector(std::span<const std::int64_t> values, std::size_t tensors, std::size_t losses = 0);

// Returns the XXH64 digest of all values.
std::uint64_t digest(const StepProfile& profile);

}  // namespace sirtaki::scheduler
