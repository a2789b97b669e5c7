// RoundStats: what the ranks measured in a round, the same on all of them once it was exchanged.
//
// For: the interval controller, its policies and guards. A round ends with the merge of all fragments; in Mode::kSync
// it is the stretch of steps between two exchanges. Times are the largest of any rank, losses the mean. Pure value. Not
// for: measuring and exchanging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki::scheduler::interval {

// What a rank says of its difference from the anchor, before it sends it.
struct RankReport {
  bool finite = true;      // no NaN and no infinity in it
  double norm2 = 0;        // sum of its squares
  std::int64_t share = 1;  // its weight in the mean unless a guard excludes it: samples, or 1; 0: it has just joined

  friend bool operator==(const RankReport&, const RankReport&) = default;
};

struct RoundStats {
  static constexpr std::int64_t kUnknown = -1;
  static constexpr std::int64_t kMaxStep = std::int64_t{1} << 48;
  static constexpr std::int64_t kMaxTimeUs = std::int64_t{1} << 40;
  static constexpr std::int64_t kMaxLoss = std::int64_t{1} << 40;   // millionths
  static constexpr std::int64_t kMaxRate = std::int64_t{1} << 57;   // picos: a learning rate of 144,115
  static constexpr std::int64_t kMaxShare = std::int64_t{1} << 32;  // samples

  std::int64_t step = 0;               // of the training, complete; never goes back
  std::int64_t steps_left = kUnknown;  // to its end
  std::int64_t lr_pico = kUnknown;     // learning rate of the round's last step, in 10^-12

  std::int64_t step_us = 0;      // T: a step without waiting; 0: not measured
  std::int64_t transfer_us = 0;  // C: on the link for a merge of all fragments, as they travel now; in Mode::kSync what
                                 // a merge of dense differences would take
  std::int64_t dense_us = 0;     // the same, if nothing were compressed
  std::int64_t longest_us = 0;   // M: the fragment that takes longest, as it travels now
  std::int64_t stall_us = 0;     // of a step in Mode::kSync, what it waited for the link; else 0
  bool compressed = false;       // transfer_us and longest_us are of compressed differences

  bool loss_finite = true;                 // on all ranks
  std::int64_t loss_before_e6 = kUnknown;  // running mean when the merge before began, millionths
  std::int64_t loss_after_e6 = kUnknown;   // and now

  std::vector<RankReport> ranks;       // by rank; empty: there was no merge
  double mean_norm2 = 0;               // sum of squares of the mean difference
  std::vector<std::uint64_t> digests;  // by rank, of all anchors, or of parameters in Mode::kSync; empty: not compared
  std::int64_t late_tags = 0;          // merges given up since the round before
  std::int64_t now_us = 0;             // since the job began, agreed; never goes back

  friend bool operator==(const RoundStats&, const RoundStats&) = default;
};

// kCorrupt: names the field that cannot be so, with `ranks` ranks.
Status check(const RoundStats& stats, std::size_t ranks);

// Variance of the ranks' differences: the mean of norm2 less mean_norm2, over ranks whose weight is above 0. At least
// 0; summed in rank order.
double variance_of(const RoundStats& stats, const std::vector<std::int64_t>& weights);

}  // namespace sirtaki::scheduler::interval
