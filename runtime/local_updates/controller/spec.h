// Interval policies by name, with their keys, and the options they make.
//
//   TEXT   NAME[:key=value[,key=value...]]   a policy; a number N stands for fixed:steps=N
// For: whoever builds an interval controller (controller.h). Pure: tables that never change, plain values.
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
  kAuto,        // as few steps as the link needs, and the guards
  kQsr,         // Gu et al., A quadratic synchronization rule for distributed deep learning, 2023
  kAdaComm,     // Wang and Joshi, Adaptive communication strategies in local-update SGD, 2018; as Paddle clips it
  kDivergence,  // Theologitis et al., Communication-efficient distributed deep learning via federated dynamic
                // averaging, 2024
  kDiLoCo,      // Douillard et al., DiLoCo, 2023: fixed, as long as INTELLECT-1's
  kCallable,    // a function of the program; has no name
};

struct PolicyInfo {
  PolicyId id;
  std::string_view name;
  std::string_view help;  // one line for a person
  std::vector<KeyInfo> keys;
};
const std::vector<PolicyInfo>& policies();

// What the program's function gets, and what is asked of it: the same number on all ranks, 1 to kLongestInterval. Of
// more than IntervalOptions::most it gets that, with Reason::kAtMost.
using Hook = std::function<std::int64_t(const RoundStats& stats, const Interval& now)>;

// Defaults are those of `auto`.
struct IntervalOptions {
  static constexpr std::int64_t kByItself = -1;

  PolicyId policy = PolicyId::kAuto;
  // Synchronous steps at the beginning. kByItself: until the learning rate no longer rises, at least `lr_warmup`, and
  // for the time that 5 % of the steps planned, up to 500, take without waiting; 200 where their number is not known. A
  // fifth of these steps are made in any case.
  std::int64_t warmup = kByItself;
  std::int64_t lr_warmup = 0;      // steps in which a schedule raises the learning rate, if known
  std::int64_t base = 4;           // kFixed, kDiLoCo: the interval; kAdaComm: under the root; others: at least so much,
                                   // for kDivergence 2, since a single step has no variance
  std::int64_t most = 64;          // no interval is longer
  std::int64_t alpha_pico = 0;     // kQsr: (alpha / lr)^2 steps; 0: highest learning rate * sqrt(base)
  std::int64_t theta_pico = 0;     // kDivergence: variance to stay below; 0: what `base` steps have in the first rounds
  std::int64_t delay = kByItself;  // kByItself: what hides a fragment's way
  bool may_compress = false;       // kAuto: differences may travel by a lossy codec when the link needs it
  LinkOptions link;
  GuardOptions guard;
  Hook hook;  // of kCallable, and only of it
};

// kInvalidArgument: says which policy or key is unknown or out of range, what is allowed, and the nearest name.
Result<IntervalOptions> parse_interval(std::string_view text);

// kInvalidArgument: a value out of range, or a hook without its policy.
Status check(const IntervalOptions& options);

// XXH64 of all of them; of a hook, that there is one.
std::uint64_t digest(const IntervalOptions& options);

}  // namespace sirtaki::local_updates
