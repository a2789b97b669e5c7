// Policies: how many local steps the statistics of the training allow.
//
// For: the interval controller, which then lets the link, the guards and the end of the training have their say.
// Sources are named in spec.h. Owned by: the controller. Pure.
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
  const Interval& now;           // of the round that the statistics are of
  std::int64_t highest_lr_pico;  // so far, this round's included
};

class Policy {
 public:
  Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;

  // After every round, also a synchronous one. kInvalidArgument: the program's function gave a number out of range.
  virtual Result<Bound> bound(const PolicyInput& input) = 0;
  // Whether an interval has to be reached by doubling; else it is used at once.
  virtual bool grows() const { return true; }
  virtual void state(StateIo& io) = 0;
};

// Of checked options.
std::unique_ptr<Policy> make_policy(const IntervalOptions& options);

// ---- formulas ----

// max(base, floor((alpha / lr)^2)), at most `most`. alpha 0: highest_lr * sqrt(base). A learning rate that is not known
// gives `base`, 0 gives `most`.
std::int64_t qsr_steps(const IntervalOptions& options, std::int64_t highest_lr_pico, std::int64_t lr_pico);

struct LossAndRate {
  std::int64_t loss_e6 = 0;
  std::int64_t lr_pico = 0;
};
// ceil(sqrt(base * (first lr * loss) / (lr * first loss))), 1 to `most`. All four are above 0.
std::int64_t adacomm_steps(const IntervalOptions& options, LossAndRate first, LossAndRate now);

// The most steps, 1 to `most`, whose variance stays at `theta` when one step's is `one_step` and it grows with
// H^1.5; all logarithms to base 2, 1/65536.
std::int64_t divergence_steps(std::int64_t theta_log, std::int64_t one_step_log, std::int64_t most);

}  // namespace sirtaki::local_updates
