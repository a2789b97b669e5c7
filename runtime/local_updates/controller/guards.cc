#include "runtime/local_updates/controller/guards.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/local_updates/controller/fixed_point.h"
#include "scheduler/plan/arith.h"

namespace sirtaki::local_updates {
namespace {

NormOptions norm_options(const GuardOptions& options) {
  NormOptions norm = options.norm;
  norm.on = norm.on && options.on;
  return norm;
}

std::int64_t median(const std::deque<std::int64_t>& values) {
  return lower_median(std::vector<std::int64_t>(values.begin(), values.end()));
}

bool has_broken(const Merge& merge) {
  return !std::ranges::all_of(merge.ranks, is_finite);
}

// Losses may be negative.
bool rises_by(std::int64_t before, std::int64_t after, std::int64_t permille) {
  return Wide{after - before} * 1000 > Wide{std::abs(before)} * permille;
}

}  // namespace

Guards::Guards(const GuardOptions& options, std::size_t ranks, std::size_t fragments)
    : options_(options), norms_(fragments, FragmentNorms(norm_options(options), ranks)), records_(ranks) {
  SRT_CHECK(ranks > 0 && fragments > 0);
}

const FragmentNorms& Guards::norms(int fragment) const {
  SRT_CHECK(fragment >= 0 && static_cast<std::size_t>(fragment) < norms_.size());
  return norms_[static_cast<std::size_t>(fragment)];
}

void Guards::judge_norms(const std::vector<Merge>& merges, std::size_t rank, Alarms& alarms) {
  std::size_t out = 0;
  std::size_t all = 0;
  for (const Merge& merge : merges) {
    all += total_weight(merge) > 0 && merge.ranks[rank].share > 0 ? 1 : 0;
    out += left_out(merge, rank) ? 1 : 0;
  }
  if (all == 0) {
    return;
  }
  Record& record = records_[rank];
  record.strikes = 2 * out > all ? record.strikes + 1 : 0;
  if (out == 0) {
    return;
  }
  Alarm alarm{Guard::kNorm, Level::kYellow, Action::kExclude, static_cast<int>(rank)};
  if (record.strikes >= options_.norm_strikes) {
    record.strikes = 0;
    alarm.level = Level::kRed;
    alarm.action = record.resets < options_.norm_resets ? Action::kResetRank : options_.norm_last;
    record.resets = std::min(record.resets + 1, options_.norm_resets);
  }
  alarms.push_back(alarm);
}

void Guards::judge_ranks(const std::vector<Merge>& merges, Alarms& alarms) {
  const bool nobody_left =
      std::ranges::any_of(merges, [](const Merge& merge) { return total_weight(merge) == 0 && has_broken(merge); });
  if (nobody_left) {
    alarms.push_back({Guard::kNonFinite, Level::kRed, Action::kRollBack});
    return;
  }
  for (std::size_t r = 0; r < records_.size(); ++r) {
    if (std::ranges::any_of(merges, [r](const Merge& merge) { return !is_finite(merge.ranks[r]); })) {
      alarms.push_back({Guard::kNonFinite, Level::kYellow, Action::kResetRank, static_cast<int>(r)});
    }
  }
  for (std::size_t r = 0; r < records_.size(); ++r) {
    judge_norms(merges, r, alarms);
  }
  for (const Merge& merge : merges) {
    norms_[static_cast<std::size_t>(merge.fragment)].learn(merge);
  }
}

// Returns the log2, in 1/65536, of the factor by which residuals alone raise a variance above the median. A residual of
// which nothing arrives grows with the rounds, and its square with their square.
std::int64_t Guards::accumulation() const {
  if (!options_.residuals) {
    return 0;
  }
  const std::int64_t rounds = variance_rounds_ + 1;
  const std::int64_t of_median = rounds - (static_cast<std::int64_t>(variances_.size()) + 2) / 2;
  return 2 * (log2_q16(rounds) - log2_q16(of_median));
}

// A number of steps other than in the rounds of the median widens the limit. Residuals of lossy differences come from
// higher learning rates, so where the rate falls, the variance has to rise by itself, too.
bool Guards::is_high(std::int64_t variance, std::int64_t unscaled, std::int64_t steps) const {
  if (static_cast<std::int64_t>(variances_.size()) < options_.variance_warmup_rounds) {
    return false;
  }
  const std::int64_t limit = log2_q16(options_.variance_permille) - log2_q16(std::int64_t{1000}) +
                             std::abs(steps - median(variance_steps_)) / 2 + accumulation();
  return variance > median(variances_) + limit && unscaled > median(unscaled_variances_) + limit;
}

void Guards::judge_variance(const std::vector<Merge>& merges, Alarms& alarms) {
  double sum = 0;
  double unscaled_sum = 0;
  std::int64_t longest = 1;
  for (const Merge& merge : merges) {
    const auto rates = agreed_rates(merge);
    if (rates.has_value() != variance_rates_known_) {
      forget_variances();
      variance_rates_known_ = rates.has_value();
      sum = unscaled_sum = 0;
    }
    if (log_unit(merge)) {
      const auto steps = static_cast<double>(merge.steps);
      const double unit = rates.value_or(steps);
      sum += variance_of(merge) / unit / unit * std::sqrt(steps);
      unscaled_sum += variance_of(merge) / steps / std::sqrt(steps);
      longest = std::max(longest, merge.steps);
    }
  }
  const std::int64_t variance = log2_q16(sum);
  if (variance == kLogOfZero) {
    return;
  }
  const std::int64_t steps = log2_q16(longest);
  const std::int64_t unscaled = log2_q16(unscaled_sum);
  const bool high = is_high(variance, unscaled, steps);
  variances_.push_back(variance);
  unscaled_variances_.push_back(unscaled);
  variance_steps_.push_back(steps);
  variance_rounds_ = std::min(variance_rounds_ + 1, GuardOptions::kMostRounds);
  if (static_cast<std::int64_t>(variances_.size()) > options_.variance_window) {
    variances_.pop_front();
    unscaled_variances_.pop_front();
    variance_steps_.pop_front();
  }
  variance_strikes_ = high ? variance_strikes_ + 1 : 0;
  if (!high) {
    return;
  }
  const bool red = variance_strikes_ >= options_.variance_strikes;
  variance_strikes_ = red ? 0 : variance_strikes_;
  alarms.push_back({Guard::kVariance, red ? Level::kRed : Level::kYellow, red ? Action::kPause : Action::kPullBack});
}

void Guards::judge_loss(const RoundStats& stats, Alarms& alarms) {
  if (stats.loss_known && first_loss_e6_ < 0) {
    first_loss_e6_ = std::abs(stats.loss_before_e6);
  }
  const bool rises = stats.loss_known && Wide{stats.loss_after_e6 - stats.loss_before_e6} * 1000 >
                                             Wide{first_loss_e6_} * options_.loss_noise_permille;
  const auto rises_enough = [&](std::int64_t permille) {
    return rises && rises_by(stats.loss_before_e6, stats.loss_after_e6, permille);
  };
  if (!stats.loss_finite || rises_enough(options_.loss_red_permille)) {
    loss_strikes_ = 0;
    alarms.push_back({Guard::kLoss, Level::kRed, Action::kRollBack});
    return;
  }
  loss_strikes_ = rises_enough(options_.loss_yellow_permille) ? loss_strikes_ + 1 : 0;
  if (loss_strikes_ >= options_.loss_strikes) {
    loss_strikes_ = 0;
    alarms.push_back({Guard::kLoss, Level::kYellow, Action::kHalve});
  }
}

void Guards::judge_digests(const RoundStats& stats, Alarms& alarms) const {
  if (stats.digests.empty()) {
    return;
  }
  const auto minority = outvoted(stats.digests);
  if (!minority) {
    alarms.push_back({Guard::kDigest, Level::kRed, Action::kStop});
    return;
  }
  for (const int rank : *minority) {
    alarms.push_back({Guard::kDigest, Level::kYellow, Action::kRepair, rank});
  }
}

// Times later than now belong to a run before a checkpoint.
void Guards::judge_late(const RoundStats& stats, Alarms& alarms) {
  std::erase_if(late_us_,
                [&](std::int64_t at) { return at > stats.now_us || stats.now_us - at > options_.late_window_us; });
  if (stats.late_tags == 0) {
    return;
  }
  for (std::int64_t i = 0; i < std::min(stats.late_tags, options_.late_strikes); ++i) {
    late_us_.push_back(stats.now_us);
  }
  const bool red = static_cast<std::int64_t>(late_us_.size()) >= options_.late_strikes;
  if (red) {
    late_us_.clear();
  }
  alarms.push_back({Guard::kLate, red ? Level::kRed : Level::kYellow, red ? Action::kPause : Action::kRetry});
}

std::vector<Alarm> Guards::judge(const RoundStats& stats) {
  Alarms alarms;
  judge_ranks(stats.merges, alarms);
  // Without a merge there is no anchor to return to.
  if (options_.on && !stats.merges.empty()) {
    judge_variance(stats.merges, alarms);
    judge_loss(stats, alarms);
  }
  judge_digests(stats, alarms);
  if (options_.on) {
    judge_late(stats, alarms);
  }
  return alarms;
}

void Guards::forget_variances() {
  variances_.clear();
  unscaled_variances_.clear();
  variance_steps_.clear();
  variance_rounds_ = 0;
  variance_strikes_ = 0;
}

void Guards::restart() {
  for (FragmentNorms& norms : norms_) {
    norms.forget();
  }
  std::ranges::fill(records_, Record{});
  forget_variances();
  loss_strikes_ = 0;
}

void Guards::reform(const std::vector<int>& old_rank) {
  for (FragmentNorms& norms : norms_) {
    norms.reform(old_rank);
  }
  records_.assign(old_rank.size(), Record{});
  late_us_.clear();
}

void Guards::state(StateIo& io) {
  for (FragmentNorms& norms : norms_) {
    norms.state(io);
  }
  for (Record& record : records_) {
    io.field(record.strikes, 0, options_.norm_strikes - 1);
    io.field(record.resets, 0, options_.norm_resets);
  }
  const auto window = static_cast<std::size_t>(options_.variance_window);
  io.field(variances_, window, -kMostLog, kMostLog);
  io.field(unscaled_variances_, window, kLogOfZero, kMostLog);
  io.field(variance_steps_, window, 0, kMostLog);
  io.require(variances_.size() == variance_steps_.size() && variances_.size() == unscaled_variances_.size());
  io.field(variance_rounds_, static_cast<std::int64_t>(variances_.size()), GuardOptions::kMostRounds);
  io.field(variance_rates_known_);
  io.field(variance_strikes_, 0, options_.variance_strikes - 1);
  io.field(loss_strikes_, 0, options_.loss_strikes - 1);
  io.field(first_loss_e6_, -1, RoundStats::kMaxLoss);
  io.field(late_us_, static_cast<std::size_t>(options_.late_strikes), 0, RoundStats::kMaxNowUs);
}

}  // namespace sirtaki::local_updates
