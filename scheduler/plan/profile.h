// StepProfile: what a stream's steps looked like, in integers that are equal on all ranks once they were exchanged.
//
// For: the planner. Every rank measures its own, writes it as a vector, and one all-reduce with MAX over these vectors
// gives what holds for all of them: the latest ready time and the earliest need time of each tensor, the smallest
// latency and bandwidth, the longest step, the gravest objection. An all-reduce lasts on every rank as long as the
// slowest link takes, and on a rank that is early also until the others have come: the smallest latency that any rank
// saw is nearest the truth. All that is decided from it is integer arithmetic, so all ranks decide alike.
// Pure value: no I/O, no thread, no clock. Not for: measuring (the link: link_meter.h), and the exchange.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/codec_id.h"
#include "runtime/base/status.h"

namespace sirtaki::scheduler {

// Codecs whose work the planner weighs, and what an element of a tensor costs a rank with them, all of it: what comes
// before its payload is sent, and what comes after. Picoseconds.
inline constexpr std::array kTimedCodecs = {CodecId::kInt8, CodecId::kTwobit, CodecId::kGroupTopk,
                                            CodecId::kThresholdSparse};
struct CodecCost {
  std::int64_t encode_ps = 0;
  std::int64_t decode_ps = 0;

  friend bool operator==(const CodecCost&, const CodecCost&) = default;
};
using CodecCosts = std::array<CodecCost, kTimedCodecs.size()>;

// Durations are means over the steps since the profile before, as far as they ran with the present plan. By tensor
// index where it is a list. A step lasts from the end of the one before to its own.
struct StepProfile {
  static constexpr std::int64_t kUnknown = -1;

  std::vector<std::int64_t> ready_us;        // since the step's first ready()
  std::vector<std::int64_t> need_us;         // since finish(), waiting taken out; kUnknown: not waited for by itself
  std::int64_t backward_us = 0;              // first ready() to finish()
  std::int64_t forward_us = 0;               // the rest of the step: neither backward nor waited
  std::int64_t step_us = 0;                  // from the end of the step before to its own, as measured
  std::int64_t exposed_us = 0;               // of that, what the program waited for the stream
  std::int64_t latency_ns = kUnknown;        // of one message, its bytes taken out; kUnknown: not measured yet
  std::int64_t bytes_per_second = kUnknown;  // payload, one way
  CodecCosts codec_costs = {};               // of the slowest rank; 0: not measured
  // By rank, where a policy asks for them: running mean of its loss, millionths; kUnknown: it has told none.
  std::vector<std::int64_t> losses = {};
  std::int64_t objection = 0;  // some rank's to any other plan (replanner.h); 0: none

  bool knows_link() const { return latency_ns >= 0 && bytes_per_second > 0; }
  // Nothing for a codec that is not timed.
  CodecCost cost_of(CodecId codec) const;

  friend bool operator==(const StepProfile&, const StepProfile&) = default;
};

// Values of the vector for a stream of `tensors` tensors, with `losses` of them.
std::size_t max_vector_size(std::size_t tensors, std::size_t losses = 0);

// The vector to be reduced with MAX. Values out of range are brought into it, so a wild measurement cannot spoil the
// arithmetic; lists that are too short count as 0 and kUnknown. Its size is max_vector_size(ready_us.size(),
// losses.size()).
std::vector<std::int64_t> to_max_vector(const StepProfile& profile);

// The profile that a reduced vector holds. kMismatch: ranks wrote different formats or numbers of tensors; kCorrupt:
// a wrong size or a value out of range.
Result<StepProfile> from_max_vector(std::span<const std::int64_t> values, std::size_t tensors, std::size_t losses = 0);

// XXH64 of all values.
std::uint64_t digest(const StepProfile& profile);

}  // namespace sirtaki::scheduler
