#include "runtime/local_updates/controller/round_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/config/spec_keys.h"
#include "runtime/local_updates/controller/fixed_point.h"
#include "runtime/local_updates/controller/range_check.h"

namespace sirtaki::local_updates {
namespace {

constexpr double kMillion = 1e6;
// Larger sums of squares belong to elements whose sums over ranks would exceed the range of float32.
constexpr double kMostNorm2 = 1e60;
// Larger rates have no meaningful sum.
constexpr double kMostRates = 1e30;

bool is_rate(double rate) {
  return rate >= 0 && rate <= kMostRates;
}

// Converts to integers of 1/`unit`, clamped to `most`. Requires a number.
std::int64_t in_units(double value, double unit, std::int64_t most) {
  const auto limit = static_cast<double>(most);
  return static_cast<std::int64_t>(std::round(std::clamp(value * unit, -limit, limit)));
}

std::int64_t agreed_rate(const std::vector<RankRound>& ranks) {
  std::vector<std::int64_t> known;
  for (const RankRound& rank : ranks) {
    if (rank.lr >= 0) {
      known.push_back(in_units(rank.lr, static_cast<double>(kDecimalOne), RoundStats::kMaxRate));
    }
  }
  return known.empty() ? RoundStats::kUnknown : lower_median(std::move(known));
}

// A loss that is not finite counts as the largest rise.
void agree_on_losses(const std::vector<RankRound>& ranks, RoundStats& stats) {
  std::vector<double> before;
  std::vector<double> rises;
  for (const RankRound& rank : ranks) {
    if (!rank.loss_known) {
      continue;
    }
    const bool finite = std::isfinite(rank.loss_before) && std::isfinite(rank.loss_after);
    rises.push_back(finite ? rank.loss_after - rank.loss_before : std::numeric_limits<double>::infinity());
    if (finite) {
      before.push_back(rank.loss_before);
    }
  }
  if (rises.empty()) {
    return;
  }
  const double rise = lower_median(std::move(rises));
  stats.loss_known = stats.loss_finite = std::isfinite(rise);
  if (stats.loss_finite) {
    const double was = lower_median(std::move(before));
    stats.loss_before_e6 = in_units(was, kMillion, RoundStats::kMaxLoss);
    stats.loss_after_e6 = in_units(was + rise, kMillion, RoundStats::kMaxLoss);
  }
}

Status mismatch(std::size_t rank, const std::string& text) {
  return {Code::kMismatch,
          "rank " + std::to_string(rank) + " " + text + " at the end of a round",
          {static_cast<int>(rank), {}}};
}

Status check_merge(const Merge& merge, std::size_t ranks, std::size_t fragments) {
  const std::string error = out_of_range({{"fragment", merge.fragment, 0, static_cast<std::int64_t>(fragments) - 1},
                                          {"steps", merge.steps, 1, RoundStats::kMaxStep},
                                          {"number of reports", static_cast<std::int64_t>(merge.ranks.size()),
                                           static_cast<std::int64_t>(ranks), static_cast<std::int64_t>(ranks)},
                                          {"number of weights", static_cast<std::int64_t>(merge.weights.size()),
                                           static_cast<std::int64_t>(ranks), static_cast<std::int64_t>(ranks)}});
  if (!error.empty()) {
    return corrupt("a merge's " + error);
  }
  SRT_TRY(check(merge.ranks));
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::int64_t weight = merge.weights[r];
    if (weight != 0 && (weight != merge.ranks[r].share || !is_finite(merge.ranks[r]))) {
      return corrupt("in a merge the weight of rank " + std::to_string(r) + " is " + std::to_string(weight) +
                     ", which contradicts its report");
    }
  }
  if (!(merge.most_norm2 > 0)) {
    return corrupt("a merge scales differences down to a squared norm of " + std::to_string(merge.most_norm2));
  }
  if (!std::isfinite(merge.mean_norm2) || merge.mean_norm2 < 0) {
    return corrupt("the mean of a merge has a squared norm of " + std::to_string(merge.mean_norm2));
  }
  return {};
}

}  // namespace

bool is_finite(const RankReport& report) {
  return report.norm2 <= kMostNorm2;
}

std::int64_t total_weight(const Merge& merge) {
  std::int64_t total = 0;
  for (const std::int64_t weight : merge.weights) {
    total += weight;
  }
  return total;
}

bool left_out(const Merge& merge, std::size_t rank) {
  const RankReport& report = merge.ranks[rank];
  return merge.weights[rank] == 0 && report.share > 0 && is_finite(report) && total_weight(merge) > 0;
}

std::optional<double> agreed_rates(const Merge& merge) {
  std::vector<double> known;
  for (const RankReport& report : merge.ranks) {
    if (is_rate(report.lr_sum)) {
      known.push_back(report.lr_sum);
    }
  }
  return known.empty() ? std::nullopt : std::optional(lower_median(std::move(known)));
}

double clip_of(const Merge& merge, std::size_t rank) {
  const double norm2 = merge.ranks[rank].norm2;
  return norm2 > merge.most_norm2 ? std::sqrt(merge.most_norm2 / norm2) : 1;
}

double variance_of(const Merge& merge) {
  double sum = 0;
  double total = 0;
  for (std::size_t r = 0; r < merge.ranks.size(); ++r) {
    if (merge.weights[r] > 0) {
      sum += static_cast<double>(merge.weights[r]) * std::min(merge.ranks[r].norm2, merge.most_norm2);
      total += static_cast<double>(merge.weights[r]);
    }
  }
  return total > 0 ? std::max(sum / total - merge.mean_norm2, 0.0) : 0;
}

double one_step_variance(const std::vector<Merge>& merges) {
  double sum = 0;
  for (const Merge& merge : merges) {
    const auto steps = static_cast<double>(merge.steps);
    sum += variance_of(merge) / (steps * std::sqrt(steps));
  }
  return sum;
}

Status check(const std::vector<RankReport>& ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].share < 0 || ranks[r].share > RoundStats::kMaxShare || ranks[r].norm2 < 0) {
      return {Code::kCorrupt,
              "rank " + std::to_string(r) + " reports a share of " + std::to_string(ranks[r].share) +
                  " and a squared norm of " + std::to_string(ranks[r].norm2),
              {static_cast<int>(r), {}}};
    }
  }
  return {};
}

Result<RoundStats> agree(const std::vector<RankRound>& ranks) {
  if (ranks.empty()) {
    return bug("statistics of a round without ranks");
  }
  RoundStats stats;
  const RankRound& first = ranks[0];
  stats.step = first.step;
  stats.encoding = first.encoding;
  std::optional<std::int64_t> stall;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankRound& rank = ranks[r];
    if (rank.step != first.step) {
      return mismatch(r, "is at step " + std::to_string(rank.step) + ", rank 0 at step " + std::to_string(first.step));
    }
    if (rank.encoding < 0 || rank.encoding > RankRound::kMaxEncoding) {
      return mismatch(r, "reports an unknown encoding of differences, " + std::to_string(rank.encoding) + ",");
    }
    if (rank.encoding != first.encoding || rank.digest.has_value() != first.digest.has_value()) {
      return mismatch(
          r, "acts differently from rank 0: they encode differences differently, or only one of them compares digests");
    }
    if (rank.steps_left >= 0) {
      stats.steps_left = stats.steps_left < 0 ? rank.steps_left : std::min(stats.steps_left, rank.steps_left);
    }
    stats.step_us = std::max(stats.step_us, rank.step_us);
    stats.transfer_us = std::max(stats.transfer_us, rank.transfer_us);
    stats.dense_us = std::max(stats.dense_us, rank.dense_us);
    stats.longest_us = std::max(stats.longest_us, rank.longest_us);
    stats.latency_us = std::max(stats.latency_us, rank.latency_us);
    stats.late_tags = std::max(stats.late_tags, rank.late_tags);
    stats.now_us = std::max(stats.now_us, rank.now_us);
    if (rank.step_us > 0) {
      stall = std::min(stall.value_or(rank.stall_us), rank.stall_us);
    }
    if (rank.digest) {
      stats.digests.push_back(*rank.digest);
    }
  }
  stats.stall_us = stall.value_or(0);
  stats.lr_pico = agreed_rate(ranks);
  agree_on_losses(ranks, stats);
  return stats;
}

Status check(const RoundStats& stats, std::size_t ranks, std::size_t fragments) {
  constexpr std::int64_t kUnknown = RoundStats::kUnknown;
  constexpr std::int64_t kTime = RoundStats::kMaxTimeUs;
  const std::string error = out_of_range({
      {"step", stats.step, 0, RoundStats::kMaxStep},
      {"steps_left", stats.steps_left, kUnknown, RoundStats::kMaxStep},
      {"lr_pico", stats.lr_pico, kUnknown, RoundStats::kMaxRate},
      {"step_us", stats.step_us, 0, kTime},
      {"transfer_us", stats.transfer_us, 0, kTime},
      {"dense_us", stats.dense_us, 0, kTime},
      {"longest_us", stats.longest_us, 0, kTime},
      {"latency_us", stats.latency_us, 0, kTime},
      {"encoding", stats.encoding, 0, RoundStats::kMaxEncoding},
      {"stall_us", stats.stall_us, 0, kTime},
      {"loss_before_e6", stats.loss_before_e6, -RoundStats::kMaxLoss, RoundStats::kMaxLoss},
      {"loss_after_e6", stats.loss_after_e6, -RoundStats::kMaxLoss, RoundStats::kMaxLoss},
      {"late_tags", stats.late_tags, 0, RoundStats::kMaxStep},
      {"now_us", stats.now_us, 0, RoundStats::kMaxNowUs},
  });
  if (!error.empty()) {
    return corrupt("statistics of a round: " + error);
  }
  for (const Merge& merge : stats.merges) {
    SRT_TRY(check_merge(merge, ranks, fragments));
  }
  if (!stats.digests.empty() && stats.digests.size() != ranks) {
    return corrupt("statistics of a round have digests of " + std::to_string(stats.digests.size()) +
                   " ranks; there are " + std::to_string(ranks));
  }
  return {};
}

}  // namespace sirtaki::local_updates
