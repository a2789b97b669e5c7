// Guards: check the reports of ranks and the effect of merges on the training, and raise alarms with an action.
//
//   G1 a difference is not finite      its rank does not count, and takes anchor and optimizer state; if most ranks are
//                                      concerned, or none is left, all go back to the anchor, and a pause follows
//   G2 the norm of a rank, against     its rank does not count (norms.h); several rounds in a row: it takes anchor and
//      its own past and the others     optimizer state, a few times, then stays out, leaves, or the job ends
//   G3 variance of the differences,    shorter intervals and a pull towards the anchor; several times: a pause
//      against the median of the last  (compare federated dynamic averaging, Theologitis et al., 2024)
//   G4 loss after a round and before   shorter intervals; much worse, or not finite: back to the anchor, and a pause
//   G5 digests of anchors, parameters  the minority takes those of the majority (compare PCCL, 2025); no majority: the
//                                      job ends
//   G6 merges that were late           one more step of delay; several in ten minutes: a pause
// A pause is a time without local steps. Variances are compared as log2(variance / (mean learning rate^2 * n^1.5)) and
// without the rate, and may grow with n^1 to n^2, so a new interval or learning rate is no anomaly. Residuals of lossy
// differences may add up. Owned by the controller, or used alone. Pure: the updater executes the actions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/local_updates/controller/interval.h"
#include "runtime/local_updates/controller/norms.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/controller/state_io.h"

namespace sirtaki::local_updates {

enum class Guard : std::uint8_t { kNonFinite, kNorm, kVariance, kLoss, kDigest, kLate };
enum class Level : std::uint8_t { kYellow, kRed };

// Actions of alarms, in the order of the table above. Actions on H, D and the mode show in the Interval.
enum class Action : std::uint8_t {
  kExclude,    // the rank did not count in a merge
  kResetRank,  // the rank takes anchor and optimizer state of a rank that counts
  kPullBack,   // all ranks move a part of the way back to the anchor, several times in a round; the interval is halved
  kHalve,      // the interval is halved
  kRepair,     // the rank takes the state of the ranks that agree
  kRetry,      // the merge is repeated; the delay is longer
  kRollBack,   // all ranks take the anchor, and make synchronous steps for a while
  kPause,      // drain, then synchronous steps for a while
  kEvict,      // the job continues without the rank
  kStop,       // the job ends with an error
};

struct Alarm {
  Guard guard = Guard::kNonFinite;
  Level level = Level::kYellow;
  Action action = Action::kExclude;
  int rank = -1;  // -1: all ranks

  friend bool operator==(const Alarm&, const Alarm&) = default;
};
std::string_view guard_name(Guard guard);
std::string_view action_name(Action action);
Reason reason_of(Guard guard);

struct GuardOptions {
  // Limit of variance_window, and number of rounds after which residuals no longer grow to speak of.
  static constexpr std::int64_t kMostRounds = 1000;

  bool on = true;  // off: only values that are not finite (G1) and digests (G5)
  // Differences may be lossy, and what was not sent is a part of the next ones.
  bool residuals = false;
  // G2.
  NormOptions norm;
  std::int64_t norm_strikes = 3;        // consecutive rounds, each without most of the differences of the rank
  std::int64_t norm_resets = 2;         // limit for one rank
  Action norm_last = Action::kExclude;  // the action after them; or kEvict, kStop
  // G3.
  std::int64_t variance_permille = 4000;
  std::int64_t variance_window = 20;  // rounds in the median
  std::int64_t variance_warmup_rounds = 5;
  std::int64_t variance_strikes = 3;  // consecutive rounds
  // G4.
  std::int64_t loss_yellow_permille = 100;
  std::int64_t loss_red_permille = 500;
  std::int64_t loss_strikes = 3;         // consecutive rounds
  std::int64_t loss_noise_permille = 4;  // part of the first loss; smaller rises are noise
  // G6.
  std::int64_t late_strikes = 3;
  std::int64_t late_window_us = 600'000'000;
  // Limits after alarms.
  std::int64_t pause_steps = 100;
  // Rounds without an alarm for all ranks, after which a shortened interval may double.
  std::int64_t calm_rounds = 10;
};
// Checks options. kInvalidArgument: an invalid value.
Status check(const GuardOptions& options);

// Returns the ranks whose digest differs from that of the majority; nullopt: no digest has more than half of the ranks.
std::optional<std::vector<int>> outvoted(std::span<const std::uint64_t> digests);

class Guards {
 public:
  Guards(const GuardOptions& options, std::size_t ranks, std::size_t fragments);

  // Judges a round or a drain. Returns alarms ordered by guard, then rank.
  std::vector<Alarm> judge(const RoundStats& stats);

  const FragmentNorms& norms(int fragment) const;

  // Drops all norms and variances, because the past does not apply after a rollback.
  void restart();
  // Notes that a drain has sent all residuals.
  void drained() { variance_rounds_ = static_cast<std::int64_t>(variances_.size()); }
  // Drops the variances, because with another encoding ranks keep other residuals, which are part of their differences.
  void forget_variances();
  // Renumbers ranks. `old_rank[r]` is the previous number of rank r; -1: a new member.
  void reform(const std::vector<int>& old_rank);

  void state(StateIo& io);

 private:
  using Alarms = std::vector<Alarm>;

  // Counters of G2.
  struct Record {
    std::int64_t strikes = 0;
    std::int64_t resets = 0;
  };

  void judge_ranks(const std::vector<Merge>& merges, Alarms& alarms);
  void judge_norms(const std::vector<Merge>& merges, std::size_t rank, Alarms& alarms);
  void judge_variance(const std::vector<Merge>& merges, Alarms& alarms);
  bool is_high(std::int64_t variance, std::int64_t unscaled, std::int64_t steps) const;
  std::int64_t accumulation() const;
  void judge_loss(const RoundStats& stats, Alarms& alarms);
  void judge_digests(const RoundStats& stats, Alarms& alarms) const;
  void judge_late(const RoundStats& stats, Alarms& alarms);

  const GuardOptions options_;
  std::vector<FragmentNorms> norms_;  // indexed by fragment
  std::vector<Record> records_;       // indexed by rank
  // Values of the last rounds, as log2 in 1/65536, and the steps that their differences covered.
  std::deque<std::int64_t> variances_;
  std::deque<std::int64_t> unscaled_variances_;  // not divided by learning rates
  std::deque<std::int64_t> variance_steps_;
  std::int64_t variance_rounds_ = 0;  // rounds since they were dropped or residuals were sent; at least their number
  bool variance_rates_known_ = false;
  std::int64_t variance_strikes_ = 0;
  std::int64_t loss_strikes_ = 0;
  std::int64_t first_loss_e6_ = -1;   // magnitude of the first loss; below 0: not known
  std::deque<std::int64_t> late_us_;  // times at which merges were given up
};

}  // namespace sirtaki::local_updates
