#include "scheduler/interval/round_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/spec_keys.h"
#include "scheduler/interval/fixed_point.h"
#include "scheduler/interval/range_check.h"

namespace sirtaki::scheduler::interval {
namespace {

constexpr double kMillion = 1e6;

bool is_sum_of_squares(double value) {
  return std::isfinite(value) && value >= 0;
}

// `unit` of them make 1. The value is a number.
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

void agree_on_losses(const std::vector<RankRound>& ranks, RoundStats& stats) {
  std::int64_t known = 0;
  for (const RankRound& rank : ranks) {
    if (!rank.loss_known) {
      continue;
    }
    if (!std::isfinite(rank.loss_before) || !std::isfinite(rank.loss_after)) {
      stats.loss_finite = false;
      continue;
    }
    ++known;
    stats.loss_before_e6 += in_units(rank.loss_before, kMillion, RoundStats::kMaxLoss);
    stats.loss_after_e6 += in_units(rank.loss_after, kMillion, RoundStats::kMaxLoss);
  }
  stats.loss_known = known > 0;
  if (known > 0) {
    stats.loss_before_e6 /= known;
    stats.loss_after_e6 /= known;
  }
}

Status mismatch(std::size_t rank, const std::string& text) {
  return {Code::kMismatch,
          "rank " + std::to_string(rank) + " " + text + " at the end of a round",
          {static_cast<int>(rank), {}}};
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

Result<RoundStats> agree(const std::vector<RankRound>& ranks) {
  if (ranks.empty()) {
    return bug("statistics of a round without ranks");
  }
  RoundStats stats;
  const RankRound& first = ranks[0];
  stats.step = first.step;
  stats.compressed = first.compressed;
  std::optional<std::int64_t> stall;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankRound& rank = ranks[r];
    if (rank.step != first.step) {
      return mismatch(r, "is at step " + std::to_string(rank.step) + ", rank 0 at step " + std::to_string(first.step));
    }
    if (rank.compressed != first.compressed || rank.digest.has_value() != first.digest.has_value()) {
      return mismatch(r, "has not done what rank 0 has: one of them compresses or compares digests");
    }
    if (rank.steps_left >= 0) {
      stats.steps_left = stats.steps_left < 0 ? rank.steps_left : std::min(stats.steps_left, rank.steps_left);
    }
    stats.step_us = std::max(stats.step_us, rank.step_us);
    stats.transfer_us = std::max(stats.transfer_us, rank.transfer_us);
    stats.dense_us = std::max(stats.dense_us, rank.dense_us);
    stats.longest_us = std::max(stats.longest_us, rank.longest_us);
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
      {"loss_before_e6", stats.loss_before_e6, -RoundStats::kMaxLoss, RoundStats::kMaxLoss},
      {"loss_after_e6", stats.loss_after_e6, -RoundStats::kMaxLoss, RoundStats::kMaxLoss},
      {"late_tags", stats.late_tags, 0, kAny},
      {"now_us", stats.now_us, 0, RoundStats::kMaxNowUs},
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
