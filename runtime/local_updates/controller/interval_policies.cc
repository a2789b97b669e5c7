#include "runtime/local_updates/controller/interval_policies.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/local_updates/controller/fixed_point.h"
#include "scheduler/plan/arith.h"

namespace sirtaki::local_updates {
namespace {

// Returns the growth of the variance of differences over so many steps, as log2: the number of steps to the power of
// 3/2, between noise and drift.
std::int64_t growth_over(std::int64_t steps) {
  return 3 * log2_q16(steps) / 2;
}

// Returns a constant; or, with `least`, that number if the link needs no more.
class Fixed final : public Policy {
 public:
  explicit Fixed(std::int64_t steps, bool least = false) : steps_(steps), least_(least) {}

  Result<Bound> bound(const PolicyInput& /*input*/) override {
    return Bound{steps_, least_ ? Reason::kShortest : Reason::kFixed};
  }
  bool grows() const override { return least_; }
  void state(StateIo& /*io*/) override {}

 private:
  const std::int64_t steps_;
  const bool least_;
};

class Qsr final : public Policy {
 public:
  explicit Qsr(IntervalOptions options) : options_(std::move(options)) {}

  Result<Bound> bound(const PolicyInput& input) override {
    return Bound{qsr_steps(options_, input.highest_lr_pico, input.stats.lr_pico), Reason::kStatistics};
  }
  void state(StateIo& /*io*/) override {}

 private:
  const IntervalOptions options_;
};

class AdaComm final : public Policy {
 public:
  explicit AdaComm(IntervalOptions options) : options_(std::move(options)) {}

  Result<Bound> bound(const PolicyInput& input) override {
    const LossAndRate seen = {input.stats.loss_known ? input.stats.loss_after_e6 : 0, input.stats.lr_pico};
    if (seen.loss_e6 <= 0 || seen.lr_pico <= 0) {
      return Bound{input.now.steps, Reason::kNoLoss};
    }
    // Losses fall steeply during the warm-up and do not predict later ones, so the last loss before local steps is the
    // first.
    began_ = began_ || input.now.mode == Mode::kLocal;
    if (!began_ || first_.loss_e6 == 0) {
      first_ = seen;
    }
    return Bound{adacomm_steps(options_, first_, seen), Reason::kStatistics};
  }
  void state(StateIo& io) override {
    io.field(first_.loss_e6, 0, RoundStats::kMaxLoss);
    io.field(first_.lr_pico, 0, RoundStats::kMaxRate);
    io.require((first_.loss_e6 > 0) == (first_.lr_pico > 0));
    io.field(began_);
  }

 private:
  const IntervalOptions options_;
  LossAndRate first_;
  bool began_ = false;  // local steps have begun
};

class Divergence final : public Policy {
 public:
  explicit Divergence(IntervalOptions options)
      : options_(std::move(options)),
        theta_log_(options_.theta_pico > 0 ? log2_q16(options_.theta_pico) - log2_q16(kDecimalOne) : kLogOfZero) {}

  Result<Bound> bound(const PolicyInput& input) override {
    const std::int64_t log = log2_q16(one_step_variance(input.stats.merges));
    if (log != kLogOfZero) {
      learn(log);
    }
    if (theta_log_ == kLogOfZero || rounds_ == 0) {
      return Bound{options_.base, Reason::kStatistics};
    }
    // A value above the threshold counts at once, but only now.
    const bool over = log != kLogOfZero && log + growth_over(input.now.steps) > theta_log_;
    const std::int64_t steps = divergence_steps(theta_log_, over ? std::max(log, mean_) : mean_, options_.most);
    return Bound{std::max(steps, options_.base), Reason::kStatistics};
  }
  void state(StateIo& io) override {
    io.field(theta_log_, kLogOfZero, kMostLog);
    io.require(theta_log_ == kLogOfZero || theta_log_ >= -kMostLog);
    io.field(mean_, -kMostLog, kMostLog);
    io.field(rounds_, 0, kMeanRounds);
    io.field(first_, kFirstRounds - 1, -kMostLog, kMostLog);
  }

 private:
  static constexpr std::size_t kFirstRounds = 5;
  static constexpr std::int64_t kMeanRounds = 4;

  void learn(std::int64_t log) {
    rounds_ = std::min(rounds_ + 1, kMeanRounds);
    mean_ += (log - mean_) / rounds_;
    if (theta_log_ != kLogOfZero) {
      return;
    }
    first_.push_back(log);
    if (first_.size() == kFirstRounds) {
      std::ranges::sort(first_);
      theta_log_ = first_[kFirstRounds / 2] + growth_over(options_.base);
      first_.clear();
    }
  }

  const IntervalOptions options_;
  std::int64_t theta_log_;  // log2 in 1/65536, like the others; kLogOfZero: not known yet
  std::int64_t mean_ = 0;   // mean for one step
  std::int64_t rounds_ = 0;
  std::deque<std::int64_t> first_;
};

class Callable final : public Policy {
 public:
  explicit Callable(IntervalOptions options) : options_(std::move(options)) {}

  Result<Bound> bound(const PolicyInput& input) override {
    const std::int64_t steps = options_.hook(input.stats, input.now);
    if (steps < 1 || steps > kLongestInterval) {
      return invalid_argument("the program's function wants " + std::to_string(steps) + " local steps after step " +
                              std::to_string(input.stats.step) + "; it must be 1 to " +
                              std::to_string(kLongestInterval));
    }
    return Bound{steps, Reason::kCallable};
  }
  bool grows() const override { return false; }
  void state(StateIo& /*io*/) override {}

 private:
  const IntervalOptions options_;
};

}  // namespace

std::int64_t qsr_steps(const IntervalOptions& options, std::int64_t highest_lr_pico, std::int64_t lr_pico) {
  if (lr_pico < 0) {
    return options.base;
  }
  if (lr_pico == 0) {
    return options.most;
  }
  const Wide alpha2 = options.alpha_pico > 0 ? Wide{options.alpha_pico} * options.alpha_pico
                                             : Wide{highest_lr_pico} * highest_lr_pico * options.base;
  const Wide steps = alpha2 / (Wide{lr_pico} * lr_pico);
  return static_cast<std::int64_t>(std::clamp<Wide>(steps, options.base, options.most));
}

std::int64_t adacomm_steps(const IntervalOptions& options, LossAndRate first, LossAndRate now) {
  SRT_CHECK(first.loss_e6 > 0 && first.lr_pico > 0 && now.loss_e6 > 0 && now.lr_pico > 0);
  return root_of_ratio_up(Wide{first.lr_pico} * now.loss_e6 * options.base, Wide{now.lr_pico} * first.loss_e6,
                          options.most);
}

std::int64_t divergence_steps(std::int64_t theta_log, std::int64_t one_step_log, std::int64_t most) {
  std::int64_t fits = 1;
  for (std::int64_t above = most + 1; fits + 1 < above;) {
    const std::int64_t middle = fits + (above - fits) / 2;
    if (growth_over(middle) <= theta_log - one_step_log) {
      fits = middle;
    } else {
      above = middle;
    }
  }
  return fits;
}

std::unique_ptr<Policy> make_policy(const IntervalOptions& options) {
  switch (options.policy) {
    case PolicyId::kAuto:
      return std::make_unique<Fixed>(options.base, true);
    case PolicyId::kQsr:
      return std::make_unique<Qsr>(options);
    case PolicyId::kAdaComm:
      return std::make_unique<AdaComm>(options);
    case PolicyId::kDivergence:
      return std::make_unique<Divergence>(options);
    case PolicyId::kCallable:
      return std::make_unique<Callable>(options);
    case PolicyId::kFixed:
    case PolicyId::kDiLoCo:
      break;
  }
  return std::make_unique<Fixed>(options.base);
}

}  // namespace sirtaki::local_updates
