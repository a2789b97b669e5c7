#include "scheduler/interval/round_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "scheduler/interval/range_check.h"

namespace sirtaki::scheduler::interval {
namespace {

bool is_sum_of_squares(double value) {
  return std::isfinite(value) && value >= 0;
}

Status check_ranks(const RoundStats& stats, std::size_t ranks) {
  if (!stats.ranks.empty() && stats.ranks.size() != ranks) {
    return corrupt("statistics of a round have reports of " + std::to_string(stats.ranks.size()) +
                   " ranks; there are " + std::to_string(ranks));
  }
  if (!stats.digests.empty() && stats.digests.size() != ranks) {
    return corrupt("statistics of a round have digests of " + std::to_string(stats.digests.size()) +
                   " ranks; there are " + std::to_string(ranks));
  }
  for (std::size_t r = 0; r < stats.ranks.size(); ++r) {
    const RankReport& report = stats.ranks[r];
    if (report.share < 0 || report.share > RoundStats::kMaxShare ||
        (report.finite && !is_sum_of_squares(report.norm2))) {
      return {Code::kCorrupt,
              "rank " + std::to_string(r) + " reports a share of " + std::to_string(report.share) + " and a norm of " +
                  std::to_string(report.norm2) + " squared",
              {static_cast<int>(r), {}}};
    }
  }
  return is_sum_of_squares(stats.mean_norm2) ? Status()
                                             : corrupt("statistics of a round say " + std::to_string(stats.mean_norm2) +
                                                       " for the mean's norm squared");
}

}  // namespace

Status check(const RoundStats& stats, std::size_t ranks) {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max() / 2;
  const std::string error = out_of_range({
      {"step", stats.step, 0, RoundStats::kMaxStep},
      {"steps_left", stats.steps_left, RoundStats::kUnknown, kAny},
      {"lr_pico", stats.lr_pico, RoundStats::kUnknown, RoundStats::kMaxRate},
      {"step_us", stats.step_us, 0, RoundStats::kMaxTimeUs},
      {"transfer_us", stats.transfer_us, 0, RoundStats::kMaxTimeUs},
      {"dense_us", stats.dense_us, 0, RoundStats::kMaxTimeUs},
      {"longest_us", stats.longest_us, 0, RoundStats::kMaxTimeUs},
      {"stall_us", stats.stall_us, 0, RoundStats::kMaxTimeUs},
      {"loss_before_e6", stats.loss_before_e6, RoundStats::kUnknown, RoundStats::kMaxLoss},
      {"loss_after_e6", stats.loss_after_e6, RoundStats::kUnknown, RoundStats::kMaxLoss},
      {"late_tags", stats.late_tags, 0, kAny},
      {"now_us", stats.now_us, 0, kAny},
  });
  if (!error.empty()) {
    return corrupt("statistics of a round: " + error);
  }
  return check_ranks(stats, ranks);
}

double variance_of(const RoundStats& stats, const std::vector<std::int64_t>& weights) {
  double sum = 0;
  double total = 0;
  for (std::size_t r = 0; r < stats.ranks.size(); ++r) {
    if (weights[r] > 0) {
      sum += static_cast<double>(weights[r]) * stats.ranks[r].norm2;
      total += static_cast<double>(weights[r]);
    }
  }
  return total > 0 ? std::max(sum / total - stats.mean_norm2, 0.0) : 0;
}

}  // namespace sirtaki::scheduler::interval
