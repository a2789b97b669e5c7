#include <string>

#include "runtime/local_updates/controller/guards.h"
#include "runtime/local_updates/controller/range_check.h"

namespace sirtaki::local_updates {

std::string_view guard_name(Guard guard) {
  switch (guard) {
    case Guard::kNonFinite:
      return "not finite";
    case Guard::kNorm:
      return "norm";
    case Guard::kVariance:
      return "variance";
    case Guard::kLoss:
      return "loss";
    case Guard::kDigest:
      return "digest";
    case Guard::kLate:
      return "late";
  }
  return "unknown";
}

std::string_view action_name(Action action) {
  switch (action) {
    case Action::kExclude:
      return "excluded";
    case Action::kResetRank:
      return "reset";
    case Action::kPullBack:
      return "pulled back";
    case Action::kHalve:
      return "interval halved";
    case Action::kRepair:
      return "repaired";
    case Action::kRetry:
      return "merged again";
    case Action::kRollBack:
      return "rolled back";
    case Action::kPause:
      return "paused";
    case Action::kEvict:
      return "evicted";
    case Action::kStop:
      return "stopped";
  }
  return "unknown";
}

Reason reason_of(Guard guard) {
  switch (guard) {
    case Guard::kNonFinite:
      return Reason::kGuardNonFinite;
    case Guard::kNorm:
      return Reason::kGuardNorm;
    case Guard::kVariance:
      return Reason::kGuardVariance;
    case Guard::kLoss:
      return Reason::kGuardLoss;
    case Guard::kDigest:
      return Reason::kGuardDigest;
    case Guard::kLate:
      break;
  }
  return Reason::kGuardLate;
}

Status check(const GuardOptions& options) {
  constexpr std::int64_t kMost = 1'000'000;
  constexpr std::int64_t kLongUs = std::int64_t{1} << 50;
  const NormOptions& norm = options.norm;
  const std::string error = out_of_range({
      {"norm.z_permille", norm.z_permille, 1, kMost},
      {"norm.deviation_permille", norm.deviation_permille, 1, kMost},
      {"norm.memory_rounds", norm.memory_rounds, 1, kMost},
      {"norm.warmup_rounds", norm.warmup_rounds, 1, kMost},
      {"norm.clip_permille", norm.clip_permille, 0, kMost},
      {"norm_strikes", options.norm_strikes, 1, kMost},
      {"norm_resets", options.norm_resets, 0, kMost},
      {"variance_permille", options.variance_permille, 1000, kMost},
      {"variance_window", options.variance_window, 1, GuardOptions::kMostRounds},
      {"variance_warmup_rounds", options.variance_warmup_rounds, 1, options.variance_window},
      {"variance_strikes", options.variance_strikes, 1, kMost},
      {"loss_yellow_permille", options.loss_yellow_permille, 0, kMost},
      {"loss_red_permille", options.loss_red_permille, 0, kMost},
      {"loss_strikes", options.loss_strikes, 1, kMost},
      {"loss_noise_permille", options.loss_noise_permille, 0, kMost},
      {"late_strikes", options.late_strikes, 1, kMost},
      {"late_window_us", options.late_window_us, 0, kLongUs},
      {"pause_steps", options.pause_steps, 0, kMost},
      {"calm_rounds", options.calm_rounds, 1, kMost},
  });
  if (!error.empty()) {
    return invalid_argument("guard: " + error);
  }
  const Action last = options.norm_last;
  if (last != Action::kExclude && last != Action::kEvict && last != Action::kStop) {
    return invalid_argument("guard: norm_last is to have a rank " + std::string(action_name(last)) +
                            "; it must be excluded, evicted or stopped");
  }
  return {};
}

// The majority vote of Boyer and Moore finds a candidate, and a count confirms it, so the order of ranks has no effect.
std::optional<std::vector<int>> outvoted(std::span<const std::uint64_t> digests) {
  std::uint64_t candidate = 0;
  std::size_t lead = 0;
  for (const std::uint64_t digest : digests) {
    if (lead == 0) {
      candidate = digest;
    }
    lead += digest == candidate ? 1 : static_cast<std::size_t>(-1);
  }
  std::vector<int> minority;
  for (std::size_t r = 0; r < digests.size(); ++r) {
    if (digests[r] != candidate) {
      minority.push_back(static_cast<int>(r));
    }
  }
  if (2 * minority.size() >= digests.size()) {
    return std::nullopt;
  }
  return minority;
}

}  // namespace sirtaki::local_updates
