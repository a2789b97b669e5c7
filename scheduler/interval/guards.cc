#include "scheduler/interval/guards.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "runtime/base/check.h"
#include "scheduler/arith.h"
#include "scheduler/interval/fixed_point.h"

namespace sirtaki::scheduler::interval {
namespace {

// Sums of squares above it say that weights have left all bounds; sums over ranks below it stay finite.
constexpr double kMostNorm2 = 1e200;
constexpr std::int64_t kMostLog = std::int64_t{1} << 42;

bool counts(const RankReport& report) {
  return report.finite && report.norm2 <= kMostNorm2;
}

bool more_than_half(std::size_t some, std::size_t all) {
  return 2 * some > all;
}

// Of what is proportional to (learning rate * H^0.75)^power. A learning rate that nobody knows counts as one that never
// changes.
std::int64_t scale_of(std::int64_t lr_pico, std::int64_t steps, std::int64_t power) {
  const std::int64_t rate = lr_pico > 0 ? log2_q16(lr_pico) : 0;
  return power * (rate + 3 * log2_q16(std::max<std::int64_t>(steps, 1)) / 4);
}

std::int64_t log_norm(const RankReport& report, std::int64_t lr_pico, std::int64_t steps) {
  return log2_q16(report.norm2) / 2 - scale_of(lr_pico, steps, 1);
}

// With no learning rate, or nothing learnt, there is no norm to compare.
bool is_measured(const RankReport& report, std::int64_t lr_pico) {
  return counts(report) && report.norm2 > 0 && lr_pico != 0;
}

std::int64_t median(std::deque<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Losses may be below 0.
bool rises_by(std::int64_t before, std::int64_t after, std::int64_t permille) {
  return Wide{after - before} * 1000 > Wide{std::abs(before)} * permille;
}

}  // namespace

Guards::Guards(const GuardOptions& options, std::size_t ranks) : options_(options), baselines_(ranks) {
  SRT_CHECK(ranks > 0);
}

bool Guards::is_far(const Baseline& baseline, std::int64_t norm) const {
  if (!options_.on || baseline.rounds < options_.norm_warmup_rounds || norm <= baseline.mean) {
    return false;
  }
  const std::int64_t least = options_.norm_deviation_permille * kOneQ16 / 1000;
  const Wide variance = std::max<Wide>(baseline.variance, Wide{least} * least);
  const Wide away = Wide{norm - baseline.mean} * 1000;
  return away * away > variance * options_.norm_z_permille * options_.norm_z_permille;
}

void Guards::learn(Baseline& baseline, std::int64_t norm) const {
  ++baseline.rounds;
  const std::int64_t part = std::min(baseline.rounds, options_.norm_memory_rounds);
  const std::int64_t away = norm - baseline.mean;
  baseline.mean += away / part;
  baseline.variance =
      static_cast<std::int64_t>((Wide{baseline.variance} + Wide{away} * away / part) * (part - 1) / part);
}

std::int64_t Guards::weight_of(int rank, const RankReport& report, std::int64_t lr_pico, std::int64_t steps) const {
  const auto r = static_cast<std::size_t>(rank);
  SRT_CHECK(r < baselines_.size());
  if (!counts(report) || (is_measured(report, lr_pico) && is_far(baselines_[r], log_norm(report, lr_pico, steps)))) {
    return 0;
  }
  return report.share;
}

void Guards::judge_ranks(const RoundStats& stats, std::int64_t steps, Verdict& verdict) {
  std::size_t excluded = 0;
  std::size_t broken = 0;
  for (std::size_t r = 0; r < stats.ranks.size(); ++r) {
    const RankReport& report = stats.ranks[r];
    Baseline& baseline = baselines_[r];
    verdict.weights.push_back(weight_of(static_cast<int>(r), report, stats.lr_pico, steps));
    if (!counts(report)) {
      ++broken;
      verdict.alarms.push_back({Guard::kNonFinite, Level::kYellow, Action::kResetRank, static_cast<int>(r)});
      continue;
    }
    if (!is_measured(report, stats.lr_pico)) {
      continue;
    }
    const std::int64_t norm = log_norm(report, stats.lr_pico, steps);
    if (!is_far(baseline, norm)) {
      baseline.strikes = 0;
      learn(baseline, norm);
      continue;
    }
    ++excluded;
    const bool red = ++baseline.strikes >= options_.norm_strikes;
    baseline.strikes = red ? 0 : baseline.strikes;
    verdict.alarms.push_back({Guard::kNorm, red ? Level::kRed : Level::kYellow,
                              red ? options_.norm_red : Action::kExclude, static_cast<int>(r)});
  }
  if (more_than_half(broken + excluded, stats.ranks.size())) {
    const Guard guard = broken >= excluded ? Guard::kNonFinite : Guard::kNorm;
    verdict.alarms = {{guard, Level::kRed, Action::kRollBack}};
    verdict.weights.assign(stats.ranks.size(), 0);
  }
  std::ranges::stable_sort(verdict.alarms, {}, &Alarm::guard);
}

void Guards::judge_variance(const RoundStats& stats, std::int64_t steps, Verdict& verdict) {
  const std::int64_t log = log2_q16(variance_of(stats, verdict.weights));
  if (log == kLogOfZero || stats.lr_pico == 0) {
    return;
  }
  const std::int64_t variance = log - scale_of(stats.lr_pico, steps, 2);
  const bool judged = static_cast<std::int64_t>(variances_.size()) >= options_.variance_warmup_rounds;
  const std::int64_t limit = log2_q16(options_.variance_permille) - log2_q16(std::int64_t{1000});
  const bool high = judged && variance > median(variances_) + limit;
  variances_.push_back(variance);
  if (static_cast<std::int64_t>(variances_.size()) > options_.variance_window) {
    variances_.pop_front();
  }
  variance_strikes_ = high ? variance_strikes_ + 1 : 0;
  if (!high) {
    return;
  }
  const bool red = variance_strikes_ >= options_.variance_strikes;
  variance_strikes_ = red ? 0 : variance_strikes_;
  verdict.alarms.push_back(
      {Guard::kVariance, red ? Level::kRed : Level::kYellow, red ? Action::kPause : Action::kPullBack});
}

void Guards::judge_loss(const RoundStats& stats, Verdict& verdict) {
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
    verdict.alarms.push_back({Guard::kLoss, Level::kRed, Action::kRollBack});
    return;
  }
  loss_strikes_ = rises_enough(options_.loss_yellow_permille) ? loss_strikes_ + 1 : 0;
  if (loss_strikes_ >= options_.loss_strikes) {
    loss_strikes_ = 0;
    verdict.alarms.push_back({Guard::kLoss, Level::kYellow, Action::kHalve});
  }
}

void Guards::judge_digests(const RoundStats& stats, Verdict& verdict) const {
  if (stats.digests.empty()) {
    return;
  }
  const auto minority = outvoted(stats.digests);
  if (!minority) {
    verdict.alarms.push_back({Guard::kDigest, Level::kRed, Action::kStop});
    return;
  }
  for (const int rank : *minority) {
    verdict.alarms.push_back({Guard::kDigest, Level::kYellow, Action::kRepair, rank});
  }
}

void Guards::judge_late(const RoundStats& stats, Verdict& verdict) {
  while (!late_us_.empty() && stats.now_us - late_us_.front() > options_.late_window_us) {
    late_us_.pop_front();
  }
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
  verdict.alarms.push_back({Guard::kLate, red ? Level::kRed : Level::kYellow, red ? Action::kPause : Action::kRetry});
}

Verdict Guards::judge(const RoundStats& stats, std::int64_t steps) {
  Verdict verdict;
  judge_ranks(stats, steps, verdict);
  // Without a merge there is no anchor to go back to.
  if (options_.on && !stats.ranks.empty()) {
    judge_variance(stats, steps, verdict);
    judge_loss(stats, verdict);
  }
  judge_digests(stats, verdict);
  if (options_.on) {
    judge_late(stats, verdict);
  }
  return verdict;
}

void Guards::restart() {
  std::ranges::fill(baselines_, Baseline{});
  variances_.clear();
  variance_strikes_ = loss_strikes_ = 0;
}

void Guards::reform(const std::vector<int>& old_rank) {
  std::vector<Baseline> now(old_rank.size());
  for (std::size_t r = 0; r < now.size(); ++r) {
    if (old_rank[r] >= 0) {
      SRT_CHECK(static_cast<std::size_t>(old_rank[r]) < baselines_.size());
      now[r] = baselines_[static_cast<std::size_t>(old_rank[r])];
    }
  }
  baselines_ = std::move(now);
  late_us_.clear();
}

void Guards::state(StateIo& io) {
  for (Baseline& baseline : baselines_) {
    io.field(baseline.rounds, 0);
    io.field(baseline.mean, -kMostLog, kMostLog);
    io.field(baseline.variance, 0);
    io.field(baseline.strikes, 0);
  }
  io.field(variances_, static_cast<std::size_t>(options_.variance_window));
  io.field(variance_strikes_, 0);
  io.field(loss_strikes_, 0);
  io.field(first_loss_e6_, -1, RoundStats::kMaxLoss);
  io.field(late_us_, static_cast<std::size_t>(options_.late_strikes));
}

}  // namespace sirtaki::scheduler::interval
