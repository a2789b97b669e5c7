// Guards: watch what ranks send and what merges do to the training, and say what to do about it.
//
//   G1 a difference is not finite      its rank does not count, and takes anchor and optimizer state; most ranks: all
//                                      go back to the anchor, and a pause
//   G2 a rank's norm, against its own  its rank does not count; several rounds in a row: it is reset, leaves, or the
//      past                            job ends (z-score of log norms: EDiT, Cheng et al., 2024)
//   G3 variance of the differences,    shorter intervals and a pull towards the anchor; several times: a pause
//      against the median of the last  (after federated dynamic averaging, Theologitis et al., 2024)
//   G4 loss after a merge and before   shorter intervals; much worse, or not finite: back to the anchor, and a pause
//   G5 digests of the anchors          the minority takes the majority's (after PCCL, 2025); no majority: the job ends
//   G6 merges that came too late       one more step of delay; several in ten minutes: a pause
// Norms are compared as log2(norm / (learning rate * H^0.75)), variances as log2(variance / (learning rate^2 * H^1.5)):
// noise grows with the root of H and drift with H, so a new interval or learning rate does not look like an anomaly.
// Owned by: the controller, or by whoever wants guards alone. Pure; integers but for sums of squares, which it takes as
// bits that are equal on all ranks. Not for: doing what it says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "scheduler/interval/interval.h"
#include "scheduler/interval/round_stats.h"
#include "scheduler/interval/state_io.h"

namespace sirtaki::scheduler::interval {

enum class Guard : std::uint8_t { kNonFinite, kNorm, kVariance, kLoss, kDigest, kLate };
enum class Level : std::uint8_t { kYellow, kRed };

// What each level asks for, in the order of the table above. What concerns H, D and the mode is in the Interval.
enum class Action : std::uint8_t {
  kExclude,    // the rank's weight is 0 this time
  kResetRank,  // and it takes anchor and optimizer state of a rank that counts
  kPullBack,   // all ranks: a part of the way back to the anchor, several times in a round; the interval is halved
  kHalve,      // the interval is halved
  kRepair,     // the rank takes the anchors of those that agree
  kRetry,      // the merge is made again; the delay is longer
  kRollBack,   // all ranks take the anchor, and make synchronous steps for a while
  kPause,      // drain, then synchronous steps for a while
  kEvict,      // the job goes on without the rank
  kStop,       // the job ends with an error
};

struct Alarm {
  Guard guard = Guard::kNonFinite;
  Level level = Level::kYellow;
  Action action = Action::kExclude;
  int rank = -1;  // -1: all

  friend bool operator==(const Alarm&, const Alarm&) = default;
};
std::string_view guard_name(Guard guard);
std::string_view action_name(Action action);
Reason reason_of(Guard guard);

struct GuardOptions {
  bool on = true;  // off: only what cannot be averaged (G1) and digests (G5)
  // G2. The first rounds are averaged plainly, so a few are enough to judge by.
  std::int64_t norm_z_permille = 3000;
  std::int64_t norm_memory_rounds = 50;        // of the running mean; 1/50 is EDiT's 0.02
  std::int64_t norm_warmup_rounds = 20;        // before a rank is judged
  std::int64_t norm_deviation_permille = 500;  // least standard deviation, of log2
  std::int64_t norm_strikes = 3;               // rounds in a row
  Action norm_red = Action::kResetRank;        // or kEvict, kStop
  // G3.
  std::int64_t variance_permille = 4000;
  std::int64_t variance_window = 20;  // rounds in the median
  std::int64_t variance_warmup_rounds = 5;
  std::int64_t variance_strikes = 3;  // rounds in a row
  // G4.
  std::int64_t loss_yellow_permille = 100;
  std::int64_t loss_red_permille = 500;
  std::int64_t loss_strikes = 3;         // rounds in a row
  std::int64_t loss_noise_permille = 4;  // of the first loss: a smaller rise is none
  // G6.
  std::int64_t late_strikes = 3;
  std::int64_t late_window_us = 600'000'000;
  // After alarms.
  std::int64_t pause_steps = 100;
  std::int64_t calm_rounds = 10;  // without an alarm that concerns all ranks, then a shortened interval may double
};
// kInvalidArgument: a value that makes no sense.
Status check(const GuardOptions& options);

// Whose digest differs from the one that more than half have; nullopt: no digest has so many.
std::optional<std::vector<int>> outvoted(std::span<const std::uint64_t> digests);

struct Verdict {
  std::vector<Alarm> alarms;          // by guard, then rank
  std::vector<std::int64_t> weights;  // by rank: what each counts in this merge; empty: there was none
};

class Guards {
 public:
  Guards(const GuardOptions& options, std::size_t ranks);

  // A rank's weight in the merge it is about to send to: its share, or 0. What judge() will find, too.
  std::int64_t weight_of(int rank, const RankReport& report, std::int64_t lr_pico, std::int64_t steps) const;

  // A round whose local part had `steps` steps.
  Verdict judge(const RoundStats& stats, std::int64_t steps);

  // Norms and variances are learnt anew: after a rollback the past says nothing.
  void restart();
  // `old_rank[r]`: who rank r was; -1: it has just joined.
  void reform(const std::vector<int>& old_rank);

  void state(StateIo& io);

 private:
  // A rank's log norms, 1/65536.
  struct Baseline {
    std::int64_t rounds = 0;
    std::int64_t mean = 0;
    std::int64_t variance = 0;  // 1/65536^2
    std::int64_t strikes = 0;
  };

  bool is_far(const Baseline& baseline, std::int64_t norm) const;
  void learn(Baseline& baseline, std::int64_t norm) const;
  void judge_ranks(const RoundStats& stats, std::int64_t steps, Verdict& verdict);
  void judge_variance(const RoundStats& stats, std::int64_t steps, Verdict& verdict);
  void judge_loss(const RoundStats& stats, Verdict& verdict);
  void judge_digests(const RoundStats& stats, Verdict& verdict) const;
  void judge_late(const RoundStats& stats, Verdict& verdict);

  const GuardOptions options_;
  std::vector<Baseline> baselines_;     // by rank
  std::deque<std::int64_t> variances_;  // log2, 1/65536, the last ones
  std::int64_t variance_strikes_ = 0;
  std::int64_t loss_strikes_ = 0;
  std::int64_t first_loss_e6_ = -1;   // its magnitude; below 0: none was known yet
  std::deque<std::int64_t> late_us_;  // when merges were given up
};

}  // namespace sirtaki::scheduler::interval
