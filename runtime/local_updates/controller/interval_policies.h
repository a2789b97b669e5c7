// Interval policies: number of local steps that the statistics of the training allow.
//
// The interval controller owns one, and then applies the limits of link, guards and remaining steps. spec.h names the
// sources. Pure.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/local_updates/controller/interval.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/controller/spec.h"
#include "runtime/local_updates/controller/state_io.h"

namespace sirtaki::local_updates {

struct Bound {
  std::int64_t steps = 1;  // 1 to kLongestInterval
  Reason reason = Reason::kStatistics;

  friend bool operator==(const Bound&, const Bound&) = default;
};

struct PolicyInput {
  const RoundStats& stats;
  const Interval& now;           // the interval of the round of the statistics
  std::int64_t highest_lr_pico;  // so far, including this round
};

class Policy {
 public:
  Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;

  // Returns the bound after a round; called for synchronous rounds, too. kInvalidArgument: the function of the program
  // returned a number out of range.
  virtual Result<Bound> bound(const PolicyInput& input) = 0;
  // Returns true if an interval has to be reached by doubling; else it is used at once.
  virtual bool grows() const { return true; }
  virtual void state(StateIo& io) = 0;
};

// Makes the policy. Requires checked options.
std::unique_ptr<Policy> make_policy(const IntervalOptions& options);

// ---- formulas ----

// Returns max(base, floor((alpha / lr)^2)), at most `most`. alpha 0 means highest_lr * sqrt(base). An unknown learning
// rate gives `base`, 0 gives `most`.
std::int64_t qsr_steps(const IntervalOptions& options, std::int64_t highest_lr_pico, std::int64_t lr_pico);

struct LossAndRate {
  std::int64_t loss_e6 = 0;
  std::int64_t lr_pico = 0;
};
// Returns ceil(sqrt(base * (first lr * loss) / (lr * first loss))), 1 to `most`. Requires four values above 0.
std::int64_t adacomm_steps(const IntervalOptions& options, LossAndRate first, LossAndRate now);

// Returns the largest number of steps, 1 to `most`, whose variance stays at `theta`, if that of one step is `one_step`
// and variance grows with H^1.5. Logarithms to base 2 in 1/65536.
std::int64_t divergence_steps(std::int64_t theta_log, std::int64_t one_step_log, std::int64_t most);

}  // namespace sirtaki::local_updates
