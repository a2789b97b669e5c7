// RoundStats: measurements of a round and reports on its merges, equal on all ranks after an exchange.
//
// A round is the time between two decisions of the controller: H steps in Mode::kLocal, any number of steps between two
// exchanges in kSync, the blocking merges in kDrain. The exchanges of a round:
//   at the snapshot of a fragment   ranks exchange RankReports, weigh them alike (norms.h), then send
//   at its merge, D steps later     the Merge is complete when the norm of the mean difference is known
//   at the end of the round         ranks exchange RankRounds; agree() makes RoundStats of them and adds the
//                                   merges that were completed since the previous round
// A fragment may be sent in one round and merged in the next. Both steps are fixed in advance, so a round has the same
// merges on all ranks. A merge that was given up belongs to no round; the next merge of its fragment covers its steps,
// too.
// Sums of squares are doubles, added and divided in rank order. They have the same bits everywhere, because the build
// disables contraction (-ffp-contract=off). Pure values; the updater measures and exchanges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki::local_updates {

// The report of a rank about its difference from the anchor of one fragment, before anything is sent.
struct RankReport {
  double norm2 = 0;        // sum of squares; infinite or NaN if an element is
  double lr_sum = -1;      // sum of learning rates over the covered steps; below 0: not known
  std::int64_t share = 1;  // weight in the mean unless a guard excludes the rank: samples, or 1; 0: a new member
};

// The merge of one fragment in one round.
struct Merge {
  int fragment = 0;
  std::int64_t steps = 1;             // covered steps: H, more after a merge that was given up
  std::vector<RankReport> ranks;      // indexed by rank
  std::vector<std::int64_t> weights;  // indexed by rank: its share, or 0; all 0: nothing was sent
  double mean_norm2 = 0;              // sum of squares of the mean difference; 0 if nothing was sent
  // Differences with a larger sum of squares are scaled down to it.
  double most_norm2 = std::numeric_limits<double>::infinity();
};

// Returns true if the difference can be averaged.
bool is_finite(const RankReport& report);
std::int64_t total_weight(const Merge& merge);
// Returns true if the norm alone excluded the rank from a merge of others.
bool left_out(const Merge& merge, std::size_t rank);
// Returns the sum of learning rates that holds for all: the median of the known ones, the lower of two. One wrong rate
// changes nothing. nullopt: none is known.
std::optional<double> agreed_rates(const Merge& merge);
// Returns the factor, at most 1, of the difference of a rank that counts.
double clip_of(const Merge& merge, std::size_t rank);
// Returns the variance of the differences that count: the mean of norm2, clipped, minus mean_norm2; at least 0.
double variance_of(const Merge& merge);
// Returns the variance of all fragments after one step, if variances grow with the steps to the power of 1.5.
double one_step_variance(const std::vector<Merge>& merges);

// Checks reports. kCorrupt names the rank with an invalid report.
Status check(const std::vector<RankReport>& ranks);

// Returns the part of a transfer that its bytes took, given L, the latency of an exchange between distant hosts or 0. A
// latency varies, so that part is at least a sixteenth.
constexpr std::int64_t without_latency(std::int64_t transfer_us, std::int64_t latency_us) {
  return std::max(transfer_us - latency_us, transfer_us / 16);
}

// Measurements of one rank in a round. Transfer times are the time of the link for the bytes, without waits for late
// ranks and latencies of distant hosts; in Mode::kSync they describe a merge of dense differences.
struct RankRound {
  static constexpr std::int64_t kUnknown = -1;
  static constexpr std::int64_t kMaxEncoding = 7;

  std::int64_t step = 0;               // completed steps of the training
  std::int64_t steps_left = kUnknown;  // remaining steps of the training
  double lr = -1;                      // learning rate of the last step; below 0: not known
  std::int64_t step_us = 0;            // T: a step without waits; 0: not measured
  std::int64_t transfer_us = 0;  // C: a merge of all fragments with the present encoding; 0: not measured, also below
  std::int64_t dense_us = 0;     // C without compression
  std::int64_t longest_us = 0;   // M: the longest fragment with the present encoding
  std::int64_t encoding = 0;     // that of the differences of transfer_us and longest_us, as in Interval
  // Wait of a step: the median wait for the stream in Mode::kSync, the mean wait for merges in kLocal.
  std::int64_t stall_us = 0;
  std::int64_t latency_us = 0;  // L: one exchange with the farthest rank, if that is distant; 0: near, or not known
  bool loss_known = false;
  double loss_before = 0;               // running mean at the beginning of the round
  double loss_after = 0;                // running mean at its end
  std::optional<std::uint64_t> digest;  // digest of all anchors, or of parameters in Mode::kSync; nullopt: not compared
  std::int64_t late_tags = 0;           // merges given up since the previous round
  std::int64_t now_us = 0;              // since the start of the job
};

struct RoundStats {
  static constexpr std::int64_t kUnknown = RankRound::kUnknown;
  static constexpr std::int64_t kMaxStep = std::int64_t{1} << 48;
  static constexpr std::int64_t kMaxTimeUs = std::int64_t{1} << 40;
  static constexpr std::int64_t kMaxNowUs = std::int64_t{1} << 60;
  static constexpr std::int64_t kMaxLoss = std::int64_t{1} << 45;  // millionths
  static constexpr std::int64_t kMaxRate = std::int64_t{1} << 57;  // picos: a learning rate of 144,115
  static constexpr std::int64_t kMaxEncoding = RankRound::kMaxEncoding;
  static constexpr std::int64_t kMaxShare = std::int64_t{1} << 32;  // samples

  std::int64_t step = 0;
  std::int64_t steps_left = kUnknown;  // the fewest of all ranks
  std::int64_t lr_pico = kUnknown;     // the median, the lower of two, in 10^-12
  // The largest of all ranks.
  std::int64_t step_us = 0;
  std::int64_t transfer_us = 0;
  std::int64_t dense_us = 0;
  std::int64_t longest_us = 0;
  std::int64_t latency_us = 0;
  std::int64_t encoding = 0;
  // The smallest of all ranks: early ranks wait for the others, and the last one waits for the link alone.
  std::int64_t stall_us = 0;
  // Losses of the ranks that know one, in millionths: the median before the round, and the same plus the median rise,
  // the lower of two. A rank with wrong data or rates moves nothing here; the guards of ranks find it.
  bool loss_known = false;
  bool loss_finite = true;  // false if more than half of them are not finite
  std::int64_t loss_before_e6 = 0;
  std::int64_t loss_after_e6 = 0;

  std::vector<Merge> merges;           // in the order of completion
  std::vector<std::uint64_t> digests;  // indexed by rank; empty: not compared
  std::int64_t late_tags = 0;          // the most of all ranks
  std::int64_t now_us = 0;             // the latest of all ranks
};

// Returns the statistics. Finite numbers that are too large are clamped. kMismatch names a rank that is at another
// step, or does something else than the others.
Result<RoundStats> agree(const std::vector<RankRound>& ranks);

// Checks statistics of `ranks` ranks and `fragments` fragments. kCorrupt names the invalid field.
Status check(const RoundStats& stats, std::size_t ranks, std::size_t fragments);

}  // namespace sirtaki::local_updates
