#include "runtime/local_updates/controller/norms.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/local_updates/controller/fixed_point.h"
#include "scheduler/plan/arith.h"

namespace sirtaki::local_updates {
namespace {

// Smaller rates count as 0.
constexpr double kLeastRates = 1e-30;

// Returns log norms indexed by rank; nullopt: not comparable.
std::vector<std::optional<std::int64_t>> log_norms(const Merge& merge) {
  std::vector<std::optional<std::int64_t>> norms(merge.ranks.size());
  const auto unit = log_unit(merge);
  for (std::size_t r = 0; unit && r < norms.size(); ++r) {
    if (is_finite(merge.ranks[r]) && merge.ranks[r].norm2 > 0) {
      norms[r] = log2_q16(merge.ranks[r].norm2) / 2 - *unit;
    }
  }
  return norms;
}

}  // namespace

std::optional<std::int64_t> log_unit(const Merge& merge) {
  const std::int64_t steps = log2_q16(merge.steps);
  const auto rates = agreed_rates(merge);
  if (!rates) {
    return steps - steps / 4;
  }
  return *rates < kLeastRates ? std::nullopt : std::optional(log2_q16(*rates) - steps / 4);
}

FragmentNorms::FragmentNorms(const NormOptions& options, std::size_t ranks) : options_(options), baselines_(ranks) {}

// The distance counts from the larger of the median of the others and the own mean.
bool FragmentNorms::is_far(const Baseline& baseline, std::int64_t norm, std::int64_t others) const {
  const std::int64_t above = norm - std::max(baseline.mean, others);
  if (!options_.on || baseline.rounds < options_.warmup_rounds || above <= 0) {
    return false;
  }
  const std::int64_t least = options_.deviation_permille * kOneQ16 / 1000;
  const Wide variance = std::max<Wide>(baseline.variance, Wide{least} * least);
  const Wide away = Wide{above} * 1000;
  return away * away > variance * options_.z_permille * options_.z_permille;
}

Result<Merge> FragmentNorms::weigh(int fragment, std::int64_t steps, std::vector<RankReport> ranks) const {
  if (ranks.size() != baselines_.size() || steps < 1 || steps > RoundStats::kMaxStep) {
    return corrupt(std::to_string(ranks.size()) + " ranks report differences over " + std::to_string(steps) +
                   " steps; there are " + std::to_string(baselines_.size()) + " ranks");
  }
  SRT_TRY(check(ranks));
  Merge merge{fragment, steps, std::move(ranks), {}, 0};
  const bool judged = rates_known_ == agreed_rates(merge).has_value();
  const auto norms = log_norms(merge);
  std::vector<std::int64_t> known;
  for (const auto& norm : norms) {
    if (norm) {
      known.push_back(*norm);
    }
  }
  std::size_t broken = 0;
  for (std::size_t r = 0; r < norms.size(); ++r) {
    const bool finite = is_finite(merge.ranks[r]);
    broken += finite ? 0 : 1;
    const bool far = judged && norms[r] && is_far(baselines_[r], *norms[r], lower_median(known));
    merge.weights.push_back(finite && !far ? merge.ranks[r].share : 0);
  }
  if (2 * broken > norms.size()) {
    merge.weights.assign(norms.size(), 0);
  }
  merge.most_norm2 = most_norm2(merge);
  return merge;
}

// Two ranks have no median that one of them could exceed.
double FragmentNorms::most_norm2(const Merge& merge) const {
  std::vector<double> counted;
  for (std::size_t r = 0; r < merge.ranks.size(); ++r) {
    if (merge.weights[r] > 0) {
      counted.push_back(merge.ranks[r].norm2);
    }
  }
  constexpr std::size_t kFewest = 3;
  if (!options_.on || options_.clip_permille == 0 || counted.size() < kFewest) {
    return Merge().most_norm2;
  }
  const double times = static_cast<double>(options_.clip_permille) / 1000;
  const double median = lower_median(std::move(counted));
  return median > 0 ? median * times * times : Merge().most_norm2;
}

void FragmentNorms::learn(const Merge& merge) {
  SRT_CHECK(merge.ranks.size() == baselines_.size());
  if (total_weight(merge) == 0) {
    return;
  }
  // Norms with known rates and norms without are not comparable.
  if (const bool known = agreed_rates(merge).has_value(); known != rates_known_) {
    forget();
    rates_known_ = known;
  }
  const auto norms = log_norms(merge);
  for (std::size_t r = 0; r < norms.size(); ++r) {
    if (!norms[r] || left_out(merge, r)) {
      continue;
    }
    Baseline& baseline = baselines_[r];
    baseline.rounds = std::min(baseline.rounds + 1, std::max(options_.memory_rounds, options_.warmup_rounds));
    const std::int64_t part = std::min(baseline.rounds, options_.memory_rounds);
    const std::int64_t away = *norms[r] - baseline.mean;
    baseline.mean += away / part;
    baseline.variance =
        static_cast<std::int64_t>((Wide{baseline.variance} + Wide{away} * away / part) * (part - 1) / part);
  }
}

void FragmentNorms::forget() {
  std::ranges::fill(baselines_, Baseline{});
}

void FragmentNorms::reform(const std::vector<int>& old_rank) {
  std::vector<Baseline> now(old_rank.size());
  for (std::size_t r = 0; r < now.size(); ++r) {
    if (old_rank[r] >= 0) {
      SRT_CHECK(static_cast<std::size_t>(old_rank[r]) < baselines_.size());
      now[r] = baselines_[static_cast<std::size_t>(old_rank[r])];
    }
  }
  baselines_ = std::move(now);
}

void FragmentNorms::state(StateIo& io) {
  for (Baseline& baseline : baselines_) {
    io.field(baseline.rounds, 0, std::max(options_.memory_rounds, options_.warmup_rounds));
    io.field(baseline.mean, -kMostLog, kMostLog);
    io.field(baseline.variance, 0, 4 * kMostLog * kMostLog);
  }
  io.field(rates_known_);
}

}  // namespace sirtaki::local_updates
