// RoundStats: what the ranks measured in a round, the same on all of them once it was exchanged.
//
// For: the interval controller, its policies and guards. A round ends with the merge of all fragments; in Mode::kSync
// it is the stretch of steps between two exchanges. At its end every rank tells the others its RankRound, and agree()
// makes RoundStats of them. Pure values. Not for: measuring and exchanging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

// What a rank measured in a round. Times of transfers are what the link needs for the bytes, without waiting for ranks
// that are late; in Mode::kSync what it would need for a merge of dense differences.
struct RankRound {
  static constexpr std::int64_t kUnknown = -1;

  std::int64_t step = 0;               // of the training, complete
  std::int64_t steps_left = kUnknown;  // to its end
  double lr = -1;                      // learning rate of the last step; below 0: not known
  std::int64_t step_us = 0;            // T: a step without waiting; 0: not measured
  std::int64_t transfer_us = 0;        // C: a merge of all fragments, as they travel now
  std::int64_t dense_us = 0;           // the same, if nothing were compressed
  std::int64_t longest_us = 0;         // M: the fragment that takes longest, as it travels now
  bool compressed = false;             // transfer_us and longest_us are of compressed differences
  std::int64_t stall_us = 0;           // of a step in Mode::kSync, what it waited for the stream; else 0
  bool loss_known = false;
  double loss_before = 0;               // running mean at the beginning of the round
  double loss_after = 0;                // and now
  std::optional<std::uint64_t> digest;  // of all anchors, or of parameters in Mode::kSync; nullopt: not compared now
  std::int64_t late_tags = 0;           // merges given up since the round before
  std::int64_t now_us = 0;              // since the job began
};

struct RoundStats {
  static constexpr std::int64_t kUnknown = RankRound::kUnknown;
  static constexpr std::int64_t kMaxStep = std::int64_t{1} << 48;
  static constexpr std::int64_t kMaxTimeUs = std::int64_t{1} << 40;
  static constexpr std::int64_t kMaxNowUs = std::int64_t{1} << 60;
  static constexpr std::int64_t kMaxLoss = std::int64_t{1} << 45;   // millionths
  static constexpr std::int64_t kMaxRate = std::int64_t{1} << 57;   // picos: a learning rate of 144,115
  static constexpr std::int64_t kMaxShare = std::int64_t{1} << 32;  // samples

  std::int64_t step = 0;
  std::int64_t steps_left = kUnknown;  // the fewest
  std::int64_t lr_pico = kUnknown;     // the median, the lower of two, in 10^-12
  // The largest.
  std::int64_t step_us = 0;
  std::int64_t transfer_us = 0;
  std::int64_t dense_us = 0;
  std::int64_t longest_us = 0;
  bool compressed = false;
  // The smallest: ranks that are early wait for the others, the last one waits for the link alone.
  std::int64_t stall_us = 0;
  // The mean, in millionths.
  bool loss_known = false;
  bool loss_finite = true;  // on all ranks that know one
  std::int64_t loss_before_e6 = 0;
  std::int64_t loss_after_e6 = 0;

  std::vector<RankReport> ranks;       // by rank; empty: there was no merge
  double mean_norm2 = 0;               // sum of squares of the mean difference
  std::vector<std::uint64_t> digests;  // by rank, of all anchors, or of parameters in Mode::kSync; empty: not compared
  std::int64_t late_tags = 0;          // the most
  std::int64_t now_us = 0;             // the latest
};

// Numbers that are finite but too large become the largest there are. kMismatch: ranks are not at the same step, or do
// not do the same; names one.
Result<RoundStats> agree(const std::vector<RankRound>& ranks);

// kCorrupt: names the field that cannot be so, with `ranks` ranks.
Status check(const RoundStats& stats, std::size_t ranks);

// Variance of the ranks' differences: the mean of norm2 less mean_norm2, over ranks whose weight is above 0. At least
// 0; summed in rank order.
double variance_of(const RoundStats& stats, const std::vector<std::int64_t>& weights);

}  // namespace sirtaki::scheduler::interval
