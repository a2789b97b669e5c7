// RoundMeter: what one rank measures between two decisions, as the interval controller wants to hear it.
//
// Owned by LocalUpdater; the training's thread. Times are given, it reads no clock. Losses go into a running mean.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/types.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/model.h"

namespace sirtaki::local_updates {

// What the program says of the step that it has just made.
struct LocalStep {
  double lr = -1;                             // below 0: not known
  std::optional<double> loss = std::nullopt;  // this rank's
  std::int64_t share = 1;                     // its weight in the next means: samples, or 1
  std::int64_t steps_left = RankRound::kUnknown;
  // Where gradients were averaged: what the step waited for them, and what the link needed for them.
  Duration stall = Duration(0);
  Duration transfer = Duration(0);
};

class RoundMeter {
 public:
  explicit RoundMeter(const LocalModel& model);

  // `took`: since the step before was left; nullopt: not known.
  void step(const LocalStep& step, std::optional<Duration> took);
  // What the link needed for a fragment; the same on all ranks.
  void merged(int fragment, std::int64_t transfer_us, bool compressed);
  // What this rank waited for a merge. Counts in the next report of local steps, whenever that is.
  void waited(Duration wait);

  // What a merge of the fragment takes; 0: not known.
  Duration expected(int fragment) const;

  // `synchronous`: gradients were averaged. Step, digest, time and late merges are the caller's.
  RankRound report(bool synchronous);
  // The loss that was reported is the one before the next round.
  void next_round();
  // The model is another one: its losses begin anew.
  void forget_losses();

  double loss() const { return loss_; }
  std::int64_t losses() const { return losses_; }
  void restore_losses(double loss, std::int64_t count);

 private:
  struct Time {
    std::int64_t dense_us = 0;
    std::int64_t compressed_us = 0;
  };

  void report_transfers(RankRound& round) const;

  std::int64_t numel_ = 0;
  std::int64_t longest_numel_ = 0;
  LocalStep last_;
  std::vector<std::int64_t> steps_us_;
  std::vector<std::int64_t> stalls_us_;
  std::int64_t gradients_us_ = 0;
  std::int64_t merge_waits_us_ = 0;  // since the last report, and the steps since then
  std::int64_t steps_since_report_ = 0;
  std::vector<Time> times_;  // by fragment
  bool compressed_ = false;  // the last merge
  double loss_ = 0;          // running mean
  double loss_before_ = 0;
  std::int64_t losses_ = 0;
  bool loss_before_known_ = false;
};

}  // namespace sirtaki::local_updates
