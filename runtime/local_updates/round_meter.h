// RoundMeter: measurements of one rank between two decisions, as input of the interval controller.
//
// LocalUpdater owns it and uses it on the thread of the training. Times are arguments; it reads no clock. Losses enter
// a running mean.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/types.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/model.h"

namespace sirtaki::local_updates {

// The report of the program about the step it has just made.
struct LocalStep {
  double lr = -1;                             // below 0: not known
  std::optional<double> loss = std::nullopt;  // loss of this rank
  std::int64_t share = 1;                     // weight in the next means: samples, or 1
  std::int64_t steps_left = RankRound::kUnknown;
  // With averaged gradients: the time for which the step waited for them, and the time of their transfer.
  Duration stall = Duration(0);
  Duration transfer = Duration(0);
};

class RoundMeter {
 public:
  explicit RoundMeter(const LocalModel& model);

  // Adds a step. `took` is the time since the end of the previous call; nullopt: not known.
  void step(const LocalStep& step, std::optional<Duration> took);
  // Adds the transfer time of a fragment, which is equal on all ranks.
  void merged(int fragment, std::int64_t transfer_us, std::int64_t encoding);
  // Adds a wait of this rank for a merge. It counts in the next report of local steps, whenever that is.
  void waited(Duration wait);

  // Returns the expected transfer time of a merge of the fragment; 0: not known.
  Duration expected(int fragment) const;

  // Returns the report of a round; with `synchronous` gradients were averaged. `latency_us`: L, see RankRound. The
  // caller adds step, digest, time and late merges.
  RankRound report(bool synchronous, std::int64_t latency_us);
  // Begins a round: the reported loss becomes the loss before the next round.
  void next_round();
  // Drops all losses after the model was replaced.
  void forget_losses();

  double loss() const { return loss_; }
  std::int64_t losses() const { return losses_; }
  void restore_losses(double loss, std::int64_t count);

 private:
  // Transfer times of a fragment, indexed by encoding; 0: not known.
  using Times = std::array<std::int64_t, RankRound::kMaxEncoding + 1>;

  void report_transfers(RankRound& round) const;

  std::int64_t numel_ = 0;
  std::int64_t longest_numel_ = 0;
  LocalStep last_;
  std::vector<std::int64_t> steps_us_;
  std::vector<std::int64_t> stalls_us_;
  std::int64_t gradients_us_ = 0;
  std::int64_t merge_waits_us_ = 0;  // since the last report, like steps_since_report_
  std::int64_t steps_since_report_ = 0;
  std::vector<Times> times_;   // indexed by fragment
  std::int64_t encoding_ = 0;  // that of the last merge
  double loss_ = 0;            // running mean
  double loss_before_ = 0;
  std::int64_t losses_ = 0;
  bool loss_before_known_ = false;
};

}  // namespace sirtaki::local_updates
