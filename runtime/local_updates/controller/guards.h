// Guards: watch what ranks send and what merges do to the training, and say what to do about it.
//
//   G1 a difference is not finite      its rank does not count, and takes anchor and optimizer state; most ranks, or
//                                      nobody is left: all go back to the anchor, and a pause
//   G2 a rank's norm, against its own  its rank does not count (norms.h); several rounds in a row: it takes anchor and
//      past and the others             optimizer state, a few times, then stays out, leaves, or the job ends
//   G3 variance of the differences,    shorter intervals and a pull towards the anchor; several times: a pause
//      against the median of the last  (after federated dynamic averaging, Theologitis et al., 2024)
//   G4 loss after a round and before   shorter intervals; much worse, or not finite: back to the anchor, and a pause
//   G5 digests of anchors, parameters  the minority takes the majority's (after PCCL, 2025); no majority: the job ends
//   G6 merges that came too late       one more step of delay; several in ten minutes: a pause
// Variances are compared as log2(variance / (mean learning rate^2 * n^1.5)), and may grow with n^1 to n^2: a new
// interval or learning rate is no anomaly.
// Owned by: the controller, or by whoever wants guards alone. Pure. Not for: doing what it says.
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

// What each level asks for, in the order of the table above. What concerns H, D and the mode is in the Interval.
enum class Action : std::uint8_t {
  kExclude,    // the rank did not count in some merge
  kResetRank,  // it takes anchor and optimizer state of a rank that counts
  kPullBack,   // all ranks: a part of the way back to the anchor, several times in a round; the interval is halved
  kHalve,      // the interval is halved
  kRepair,     // the rank takes what those that agree have
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
  // G2.
  NormOptions norm;
  std::int64_t norm_strikes = 3;        // rounds in a row, each with most of the rank's differences left out
  std::int64_t norm_resets = 2;         // of one rank
  Action norm_last = Action::kExclude;  // then; or kEvict, kStop
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

class Guards {
 public:
  Guards(const GuardOptions& options, std::size_t ranks, std::size_t fragments);

  // A round, or a drain; alarms by guard, then rank.
  std::vector<Alarm> judge(const RoundStats& stats);

  const FragmentNorms& norms(int fragment) const;

  // Norms and variances are learnt anew: after a rollback the past says nothing.
  void restart();
  // `old_rank[r]`: who rank r was; -1: it has just joined.
  void reform(const std::vector<int>& old_rank);

  void state(StateIo& io);

 private:
  using Alarms = std::vector<Alarm>;

  // Of G2.
  struct Record {
    std::int64_t strikes = 0;
    std::int64_t resets = 0;
  };

  void judge_ranks(const std::vector<Merge>& merges, Alarms& alarms);
  void judge_norms(const std::vector<Merge>& merges, std::size_t rank, Alarms& alarms);
  void judge_variance(const std::vector<Merge>& merges, Alarms& alarms);
  bool is_high(std::int64_t variance, std::int64_t steps) const;
  void judge_loss(const RoundStats& stats, Alarms& alarms);
  void judge_digests(const RoundStats& stats, Alarms& alarms) const;
  void judge_late(const RoundStats& stats, Alarms& alarms);

  const GuardOptions options_;
  std::vector<FragmentNorms> norms_;  // by fragment
  std::vector<Record> records_;       // by rank
  // Of the last rounds: log2, 1/65536; and of the steps that their differences covered.
  std::deque<std::int64_t> variances_;
  std::deque<std::int64_t> variance_steps_;
  bool variance_rates_known_ = false;
  std::int64_t variance_strikes_ = 0;
  std::int64_t loss_strikes_ = 0;
  std::int64_t first_loss_e6_ = -1;   // its magnitude; below 0: none was known yet
  std::deque<std::int64_t> late_us_;  // when merges were given up
};

}  // namespace sirtaki::local_updates
