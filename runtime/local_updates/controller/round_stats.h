// RoundStats: what ranks measured in a round and said of its merges, the same on all of them once it was exchanged.
//
//   a fragment's snapshot   every rank tells the others its RankReport; all weigh them alike (norms.h), then send
//   its merge, D steps on   the Merge is complete when the norm of the mean difference is known
//   the end of a round      every rank tells the others its RankRound; agree() makes RoundStats of them, and the merges
//                           that were completed since the round before are added
// A round is what lies between two decisions of the controller: H steps in Mode::kLocal, whatever their number between
// two exchanges in kSync, the blocking merges in kDrain. Fragments may be sent in one round and merged in the next:
// the steps of both are fixed beforehand, so all ranks have the same merges in a round. One that was given up is in
// none of them; the next of its fragment covers its steps, too.
// Sums of squares are doubles, added and divided in rank order: the same bits everywhere, since the build contracts
// nothing (-ffp-contract=off). Pure values. Not for: measuring and exchanging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki::local_updates {

// What a rank says of its difference from the anchor of one fragment, before anything of it is sent.
struct RankReport {
  double norm2 = 0;        // sum of its squares; infinite or not a number where an element is
  double lr_sum = -1;      // of the learning rates of the steps that it covers; below 0: not known
  std::int64_t share = 1;  // its weight in the mean unless a guard leaves it out: samples, or 1; 0: it has just joined
};

// One fragment's, in one round.
struct Merge {
  int fragment = 0;
  std::int64_t steps = 1;             // that the differences cover: H, more after a merge that was given up
  std::vector<RankReport> ranks;      // by rank
  std::vector<std::int64_t> weights;  // by rank: its share, or 0; all 0: nothing was sent
  double mean_norm2 = 0;              // sum of squares of the mean difference; 0 where nothing was sent
};

// Whether a mean can be made of it.
bool is_finite(const RankReport& report);
std::int64_t total_weight(const Merge& merge);
// Whether its norm alone kept the rank out of a merge of others.
bool left_out(const Merge& merge, std::size_t rank);
// The sum of learning rates that holds for all: the median of those that are known, the lower of two. One rank's wrong
// rate changes nothing. nullopt: none is known.
std::optional<double> agreed_rates(const Merge& merge);
// Of the differences that count: the mean of norm2 less mean_norm2; at least 0.
double variance_of(const Merge& merge);
// Of all fragments after one step, if variances grow with the steps to the power of 1.5.
double one_step_variance(const std::vector<Merge>& merges);

// kCorrupt: names the rank whose report cannot be.
Status check(const std::vector<RankReport>& ranks);

// What a rank measured in a round. Times of transfers are what the link needs for the bytes, without waiting for ranks
// that are late; in Mode::kSync what it would need for a merge of dense differences.
struct RankRound {
  static constexpr std::int64_t kUnknown = -1;

  std::int64_t step = 0;               // of the training, complete
  std::int64_t steps_left = kUnknown;  // to its end
  double lr = -1;                      // learning rate of the last step; below 0: not known
  std::int64_t step_us = 0;            // T: a step without waiting; 0: not measured
  std::int64_t transfer_us = 0;        // C: a merge of all fragments, as they travel now; 0: not measured, so below
  std::int64_t dense_us = 0;           // the same, if nothing were compressed
  std::int64_t longest_us = 0;         // M: the fragment that takes longest, as it travels now
  bool compressed = false;             // transfer_us and longest_us are of compressed differences
  // What a step waited: in Mode::kSync for the stream, the median; in kLocal for merges, the mean.
  std::int64_t stall_us = 0;
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
  // Of ranks that know one, in millionths: the median before, and it with the median of how much each rank's rose, the
  // lower of two. A rank whose data or rates are wrong is for the guards of ranks to find: it moves nothing here.
  bool loss_known = false;
  bool loss_finite = true;  // not where more than half of them are not
  std::int64_t loss_before_e6 = 0;
  std::int64_t loss_after_e6 = 0;

  std::vector<Merge> merges;           // in the order in which they were completed
  std::vector<std::uint64_t> digests;  // by rank; empty: not compared
  std::int64_t late_tags = 0;          // the most
  std::int64_t now_us = 0;             // the latest
};

// Numbers that are finite but too large become the largest there are. kMismatch: ranks are not at the same step, or do
// not do the same; names one.
Result<RoundStats> agree(const std::vector<RankRound>& ranks);

// kCorrupt: names the field that cannot be so, with `ranks` ranks and `fragments` fragments.
Status check(const RoundStats& stats, std::size_t ranks, std::size_t fragments);

}  // namespace sirtaki::local_updates
