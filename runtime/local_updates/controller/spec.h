// Interval policies by name, with their keys and options.
//
//   TEXT   NAME[:key=value[,key=value...]]   a policy; a number N means fixed:steps=N
// Used to make an interval controller (interval_controller.h). Pure: constant tables, plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "runtime/base/config/spec_keys.h"
#include "runtime/base/status.h"
#include "runtime/local_updates/controller/guards.h"
#include "runtime/local_updates/controller/interval.h"
#include "runtime/local_updates/controller/link_bound.h"

namespace sirtaki::local_updates {

enum class PolicyId : std::uint8_t {
  kFixed,       // Stich, Local SGD converges fast and communicates little, 2019
  kAuto,        // the fewest steps that link and guards allow
  kQsr,         // Gu et al., A quadratic synchronization rule for distributed deep learning, 2023
  kAdaComm,     // Wang and Joshi, Adaptive communication strategies in local-update SGD, 2018; clipped as in Paddle
  kDivergence,  // Theologitis et al., Communication-efficient distributed deep learning via federated dynamic
                // averaging, 2024
  kDiLoCo,      // Douillard et al., DiLoCo, 2023: fixed, with the interval of INTELLECT-1
  kCallable,    // a function of the program, without a name
};

struct PolicyInfo {
  PolicyId id;
  std::string_view name;
  std::string_view help;  // one line for a person
  std::vector<KeyInfo> keys;
};
const std::vector<PolicyInfo>& policies();

// The function of the program. It returns the same number on all ranks, 1 to kLongestInterval. A number above
// IntervalOptions::most is clamped, with Reason::kAtMost.
using Hook = std::function<std::int64_t(const RoundStats& stats, const Interval& now)>;

// Defaults belong to `auto`.
struct IntervalOptions {
  static constexpr std::int64_t kByItself = -1;

  PolicyId policy = PolicyId::kAuto;
  // Synchronous steps at the beginning. kByItself: until the learning rate no longer rises, at least `lr_warmup` steps,
  // and for the time that 5 % of the planned steps, up to 500, take without waits; 200 if their number is not known. A
  // fifth of these steps is made in any case.
  std::int64_t warmup = kByItself;
  std::int64_t lr_warmup = 0;  // steps in which a schedule raises the learning rate, if known
  // kFixed, kDiLoCo: the interval; kAdaComm: the value under the root; others: lower bound, 2 for kDivergence, since a
  // single step has no variance.
  std::int64_t base = 4;
  std::int64_t most = 64;          // limit of intervals
  std::int64_t alpha_pico = 0;     // kQsr: (alpha / lr)^2 steps; 0: highest learning rate * sqrt(base)
  std::int64_t theta_pico = 0;     // kDivergence: limit of the variance; 0: that of `base` steps in the first rounds
  std::int64_t delay = kByItself;  // kByItself: the delay that hides a transfer
  bool may_compress = false;       // kAuto: differences may have fewer bits if the link needs it
  LinkOptions link;
  GuardOptions guard;
  Hook hook;  // kCallable only
};

// Parses a text. kInvalidArgument names the unknown or invalid policy or key, the allowed values, and the nearest name.
Result<IntervalOptions> parse_interval(std::string_view text);

// Checks options. kInvalidArgument: a value out of range, or a hook without its policy.
Status check(const IntervalOptions& options);

// Returns the XXH64 digest of all options; a hook counts only as present.
std::uint64_t digest(const IntervalOptions& options);

}  // namespace sirtaki::local_updates
