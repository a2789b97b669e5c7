#include "scheduler/plan/profile.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>

#include "runtime/base/digest.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kFormat = 6;
// Sums over all tensors of a stream stay far below the limit of 64 bits.
constexpr std::int64_t kMaxDurationUs = std::int64_t{1} << 40;
constexpr std::int64_t kMaxLatencyNs = std::int64_t{1} << 40;
constexpr std::int64_t kMaxBytesPerSecond = std::int64_t{1} << 44;
constexpr std::int64_t kMaxObjection = 255;
constexpr std::int64_t kMaxCostPs = 1 << 24;  // for one element
constexpr std::int64_t kMaxLoss = std::int64_t{1} << 40;
// The lowest value loses every MAX, so it stands for "unknown to this rank".
constexpr std::int64_t kAbsent = std::numeric_limits<std::int64_t>::min();

enum Field : std::size_t {
  kFieldFormat,
  kFieldMinusFormat,
  kFieldTensors,
  kFieldMinusTensors,
  kFieldBackward,
  kFieldForward,
  kFieldStep,
  kFieldExposed,
  kFieldMinusLatency,
  kFieldMinusBandwidth,
  kFieldObjection,
  kFieldCosts,  // two for each timed codec
  kFields = kFieldCosts + 2 * kTimedCodecs.size(),
};

std::int64_t duration(std::int64_t us) {
  return std::clamp<std::int64_t>(us, 0, kMaxDurationUs);
}

std::int64_t at_or(const std::vector<std::int64_t>& list, std::size_t i, std::int64_t otherwise) {
  return i < list.size() ? list[i] : otherwise;
}

Result<std::int64_t> in_range(std::int64_t value, std::int64_t limit, const char* what) {
  if (value < 0 || value > limit) {
    return corrupt("a profile of a step says " + std::to_string(value) + " for " + what + "; it must be 0 to " +
                   std::to_string(limit));
  }
  return value;
}

Result<std::int64_t> known_in_range(std::int64_t value, std::int64_t limit, const char* what) {
  return value == kAbsent ? Result<std::int64_t>(StepProfile::kUnknown) : in_range(value, limit, what);
}

std::int64_t negated(std::int64_t value) {
  return value == kAbsent ? kAbsent : -value;
}

Status check_header(std::span<const std::int64_t> values, std::size_t tensors, std::size_t losses) {
  const auto count = static_cast<std::int64_t>(tensors);
  if (values.size() != max_vector_size(tensors, losses)) {
    return corrupt("a profile of " + std::to_string(tensors) + " tensors has " + std::to_string(values.size()) +
                   " values instead of " + std::to_string(max_vector_size(tensors, losses)));
  }
  const auto agreed = [&](std::size_t field, std::int64_t mine) {
    return values[field] == mine && values[field + 1] == -mine;
  };
  if (!agreed(kFieldFormat, kFormat) || !agreed(kFieldTensors, count)) {
    return {Code::kMismatch,
            "ranks wrote different profiles of the same step. Likely cause: they run different builds of this "
            "library; install the same one everywhere"};
  }
  return {};
}

}  // namespace

CodecCost StepProfile::cost_of(CodecId codec) const {
  const auto* const found = std::ranges::find(kTimedCodecs, codec);
  return found == kTimedCodecs.end() ? CodecCost{}
                                     : codec_costs[static_cast<std::size_t>(found - kTimedCodecs.begin())];
}

StepProfile all_at_once(StepProfile link, std::size_t tensors) {
  link.ready_us.assign(tensors, 0);
  link.need_us.assign(tensors, StepProfile::kUnknown);
  return link;
}

std::size_t max_vector_size(std::size_t tensors, std::size_t losses) {
  return kFields + 2 * tensors + losses;
}

std::vector<std::int64_t> to_max_vector(const StepProfile& profile) {
  const std::size_t tensors = profile.ready_us.size();
  std::vector<std::int64_t> values(max_vector_size(tensors, profile.losses.size()));
  values[kFieldFormat] = kFormat;
  values[kFieldMinusFormat] = -kFormat;
  values[kFieldTensors] = static_cast<std::int64_t>(tensors);
  values[kFieldMinusTensors] = -static_cast<std::int64_t>(tensors);
  values[kFieldBackward] = duration(profile.backward_us);
  values[kFieldForward] = duration(profile.forward_us);
  values[kFieldStep] = duration(profile.step_us);
  values[kFieldExposed] = duration(profile.exposed_us);
  values[kFieldMinusLatency] = profile.latency_ns < 0 ? kAbsent : -std::min(profile.latency_ns, kMaxLatencyNs);
  values[kFieldMinusBandwidth] =
      profile.bytes_per_second <= 0 ? kAbsent : -std::min(profile.bytes_per_second, kMaxBytesPerSecond);
  values[kFieldObjection] = std::clamp<std::int64_t>(profile.objection, 0, kMaxObjection);
  for (std::size_t i = 0; i < kTimedCodecs.size(); ++i) {
    values[kFieldCosts + 2 * i] = std::clamp<std::int64_t>(profile.codec_costs[i].encode_ps, 0, kMaxCostPs);
    values[kFieldCosts + 2 * i + 1] = std::clamp<std::int64_t>(profile.codec_costs[i].decode_ps, 0, kMaxCostPs);
  }
  for (std::size_t i = 0; i < tensors; ++i) {
    values[kFields + i] = duration(profile.ready_us[i]);
    const std::int64_t need = at_or(profile.need_us, i, StepProfile::kUnknown);
    values[kFields + tensors + i] = need < 0 ? kAbsent : -duration(need);
  }
  for (std::size_t i = 0; i < profile.losses.size(); ++i) {
    values[kFields + 2 * tensors + i] = profile.losses[i] < 0 ? kAbsent : std::min(profile.losses[i], kMaxLoss);
  }
  return values;
}

Result<StepProfile> from_max_vector(std::span<const std::int64_t> values, std::size_t tensors, std::size_t losses) {
  SRT_TRY(check_header(values, tensors, losses));
  StepProfile profile;
  const auto scalar = [&](std::size_t field, const char* what) {
    return in_range(values[field], kMaxDurationUs, what);
  };
  SRT_ASSIGN(profile.backward_us, scalar(kFieldBackward, "the backward time"));
  SRT_ASSIGN(profile.forward_us, scalar(kFieldForward, "the forward time"));
  SRT_ASSIGN(profile.step_us, scalar(kFieldStep, "the step time"));
  SRT_ASSIGN(profile.exposed_us, scalar(kFieldExposed, "the exposed time"));
  SRT_ASSIGN(profile.latency_ns, known_in_range(negated(values[kFieldMinusLatency]), kMaxLatencyNs, "the latency"));
  SRT_ASSIGN(profile.bytes_per_second,
             known_in_range(negated(values[kFieldMinusBandwidth]), kMaxBytesPerSecond, "the bandwidth"));
  if (profile.bytes_per_second == 0) {
    return corrupt("a profile of a step says 0 for the bandwidth; it must be more, or unknown");
  }
  SRT_ASSIGN(profile.objection, in_range(values[kFieldObjection], kMaxObjection, "the objection"));
  for (std::size_t i = 0; i < kTimedCodecs.size(); ++i) {
    CodecCost& cost = profile.codec_costs[i];
    SRT_ASSIGN(cost.encode_ps, in_range(values[kFieldCosts + 2 * i], kMaxCostPs, "the cost of encoding"));
    SRT_ASSIGN(cost.decode_ps, in_range(values[kFieldCosts + 2 * i + 1], kMaxCostPs, "the cost of decoding"));
  }
  profile.ready_us.reserve(tensors);
  profile.need_us.reserve(tensors);
  for (std::size_t i = 0; i < tensors; ++i) {
    SRT_ASSIGN(const std::int64_t ready, in_range(values[kFields + i], kMaxDurationUs, "a ready time"));
    SRT_ASSIGN(const std::int64_t need,
               known_in_range(negated(values[kFields + tensors + i]), kMaxDurationUs, "a need time"));
    profile.ready_us.push_back(ready);
    profile.need_us.push_back(need);
  }
  for (std::size_t i = 0; i < losses; ++i) {
    SRT_ASSIGN(const std::int64_t loss, known_in_range(values[kFields + 2 * tensors + i], kMaxLoss, "a loss"));
    profile.losses.push_back(loss);
  }
  return profile;
}

std::uint64_t digest(const StepProfile& profile) {
  const std::vector<std::int64_t> values = to_max_vector(profile);
  return digest_of(std::as_bytes(std::span(values)));
}

}  // namespace sirtaki::scheduler
