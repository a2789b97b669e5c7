// LocalUpdater: local SGD. Ranks train alone for some steps, and their models are merged while later steps run.
//
// Every rank has an anchor, the last agreed model, which is bit-identical on all ranks, and a model of its own: the
// anchor plus the steps of this rank since then. The model is cut into fragments. Every H steps, a rank takes a
// snapshot of a fragment; D steps later, in the same step on all ranks, the mean of the snapshots becomes the next
// anchor (merge.h):
//   D = 0   the model becomes the anchor
//   D > 0   the model moves by the difference between mean and snapshot; steps since the snapshot stay
//   codec   the model loses the part of its difference that arrived, and takes the mean of all; the residual
//           stays in the model and enters the next merge
// The interval controller (runtime/local_updates/controller/interval_controller.h) chooses H, D and the mode. Every
// rank has a controller and gives it the same input:
//   kSync   the program averages gradients itself, in every step; the updater only counts and decides
//   kLocal  merges as described above
//   kDrain  merges in flight end, then all is merged at once, so that model and anchor are equal everywhere: the exact
//           mean of the models, or of their differences in int8 (drain_encoding())
// A round is reported D steps before its end, so that no rank waits for the decision.
//
// Calls are collective: every rank makes the same calls after the same steps. An error is final: all later calls return
// it. After kRanksChanged, which has no line in the log, the adapter makes models equal and another updater over the
// next session. An adapter owns the updater, and only the thread of the training uses it. It has no lock, thread or
// clock of its own. It does not average gradients, and handles neither optimizer state nor changes of ranks.
// Method: Local SGD (Stich, 2019) with the correction of CoCoD-SGD (Shen et al., 2019); fragments as in Streaming
// DiLoCo (Douillard et al., 2025); compression as in CSER (Xie et al., 2020) and LOSCAR-SGD.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/base/wire.h"
#include "runtime/local_updates/anchor.h"
#include "runtime/local_updates/controller/interval_controller.h"
#include "runtime/local_updates/exchange.h"
#include "runtime/local_updates/merge.h"
#include "runtime/local_updates/model.h"
#include "runtime/local_updates/options.h"
#include "runtime/local_updates/round_meter.h"
#include "runtime/local_updates/scratch.h"

namespace sirtaki::local_updates {

// The effects of a call that the program has to know.
struct LocalOutcome {
  bool model_changed = false;  // parameters were written
  // The optimizer state of this rank belongs to a model that was replaced.
  bool reset_optimizer = false;
  // Set on all ranks: gradients are averaged from here on, so optimizer states have to be equal, or models diverge.
  bool equalize_optimizer = false;
  // Decisions in order, usually none. Alarms with kResetRank ask their rank to take the optimizer state of `donor`.
  std::vector<Decision> decisions;
  Rank donor = -1;
};

// The schedule in force.
struct LocalPace {
  bool averages_gradients = true;  // the program averages gradients in its next step
  std::int64_t steps = 1;          // steps between two merges of a fragment
  std::int64_t delay = 0;          // steps from a snapshot to its merge
};

class LocalUpdater {
 public:
  // `exchange` (with the fragments of `model`), `log` (may be nullptr) and the memory of the model outlive the updater.
  // kInvalidArgument: options that check() refuses. Exchanges nothing.
  static Result<std::unique_ptr<LocalUpdater>> make(const LocalOptions& options, LocalModel model,
                                                    LocalExchange& exchange, Logger* log);
  ~LocalUpdater();
  LocalUpdater(const LocalUpdater&) = delete;
  LocalUpdater& operator=(const LocalUpdater&) = delete;

  // Checks that options and models are equal on all ranks, and decides for the first time. Call once, before the first
  // step, with equal models.
  Result<LocalOutcome> start();
  // Call after every step of the optimizer.
  Result<LocalOutcome> step(const LocalStep& step);
  // Makes model, anchor and buffers equal on all ranks. Where drain_encoding() is not 0, what int8 loses of the
  // differences is dropped. A second drain moves nothing.
  Result<LocalOutcome> drain();
  // Asks for averaged gradients, which begin at once, or withdraws the request, from the next decision on.
  Result<LocalOutcome> synchronous(bool wanted);

  LocalPace pace() const;
  const Interval& interval() const { return controller_->current(); }
  std::int64_t steps() const { return step_; }
  // Returns the last agreed values of all fragments; equal to the model after a drain.
  const std::vector<Anchor>& anchors() const { return anchors_; }
  std::uint64_t anchors_digest() const;

  // Returns the state for a checkpoint; the program saves the model. kInvalidArgument: a merge is in flight; drain()
  // first.
  Result<std::vector<std::byte>> saved() const;
  // Replaces start(), with the model of the checkpoint. kCorrupt: a state of other options, ranks or fragments; nothing
  // changes then. Exchanges nothing.
  Status restore(ConstBytes saved);

  // Returns mode, interval, delay, reason, rounds, waits, bytes, divergence, alarms and memory as JSON.
  std::string stats_json() const;

 private:
  static constexpr int kDrainAttempts = 3;

  // The steps that the differences of a fragment cover.
  struct Cover {
    std::int64_t steps = 0;
    double lr_sum = 0;
    bool lr_known = true;
    void add(const Cover& other);
  };
  struct Progress {
    Cover since;                 // steps since the last snapshot
    Cover older;                 // steps before it, back to the last merge
    std::int64_t snapshot = -1;  // step of the next snapshot
    // The model went back to the anchor since, so this rank has no difference to report.
    bool reset = false;
    bool merged = false;  // the model is the anchor on all ranks
  };
  struct Posted {
    std::int64_t end = 0;
    std::vector<Merge> merges;
    std::int64_t late = 0;
  };
  // The steps between two decisions.
  struct Round {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t compared_at = 0;  // last comparison of parameters, while gradients are averaged
    std::int64_t pull_every = 0;   // interval of pulls towards the anchor in this round; 0: none
    std::optional<Posted> posted;  // a round without a decision yet
  };
  struct Times {
    TimePoint begun;
    std::int64_t begun_us = 0;         // duration of the job before a checkpoint
    std::optional<TimePoint> left_at;  // end of the last call
  };
  // The open span of the trace.
  struct Span {
    std::string name;  // empty: no span is open
    TimePoint begin;
  };
  struct Totals {
    std::uint64_t rounds = 0;
    std::uint64_t merges = 0;
    std::uint64_t given_up = 0;
    std::uint64_t late = 0;
    std::uint64_t excluded = 0;  // merges in which this rank did not count
    std::uint64_t clipped = 0;   // merges in which the difference of this rank was scaled down
    std::uint64_t sent_bytes = 0;
    std::uint64_t repairs = 0;
    std::uint64_t drains = 0;
    std::int64_t waited_ns = 0;
    std::vector<std::uint64_t> alarms;  // indexed by guard
    // Values of the last decision.
    std::int64_t statistics_steps = 1;
    std::int64_t link_steps = 1;
    std::int64_t cost_permille = 0;
    double divergence = 0;  // variance of the last round over the norm of the mean difference, both squared
  };

  LocalUpdater(LocalOptions options, LocalModel model, LocalExchange& exchange, Logger* log);

  bool is_local() const;
  // Ends a public call: keeps the first error and records the time.
  Result<LocalOutcome> end_call(const Status& status, LocalOutcome outcome);
  Status check_running() const;
  std::int64_t now_us() const;  // since the start of the job
  OuterRate effective_rate() const;
  std::int64_t encoding_in_force() const;  // that of differences in merges; 0: models are sent
  std::string codec_in_force() const;

  static void save(const Merge& merge, WireWriter& out);
  static Merge load_merge(WireReader& in, std::size_t ranks);
  Status load_fragments(WireReader& in, std::vector<Anchor>& anchors, std::vector<Progress>& fragments) const;

  // ---- updater.cc: a step ----
  void count(const LocalStep& step);
  Status local_step(LocalOutcome& outcome);
  Status poll();
  Status snapshot(std::size_t fragment, std::int64_t encoding, LocalOutcome& outcome);
  Status conclude(std::size_t fragment, LocalOutcome& outcome);
  void on_merged(const FragmentMerge& merge);
  void note_late(const FragmentMerge& merge, Duration waited);
  void on_given_up(const FragmentMerge& merge);
  void pull_back(LocalOutcome& outcome);
  MergeDeps merge_deps();

  // ---- updater_round.cc: reports and decisions ----
  void begin_round(std::int64_t base);
  // Ends the open span. An empty name opens none.
  void begin_span(std::string name);
  std::int64_t lag() const;
  Status post_round(std::int64_t end, bool compare);
  Status decide_posted(LocalOutcome& outcome);
  Status discard_round();
  Status handle_alarms(const std::vector<Alarm>& alarms, bool anchors, LocalOutcome& outcome);
  Status follow_mode(Mode before, std::int64_t encoding, LocalOutcome& outcome);
  void record(const Decision& decision);
  void note_losses(const RoundStats& stats);
  Result<Reports> exchange_reports(Channel channel, ConstBytes mine, const std::string& what);
  Result<Reports> receive(Channel channel, const std::string& what);

  // ---- updater_drain.cc: equal models ----
  Status finish_flights(LocalOutcome& outcome);
  Status drain_now(std::int64_t encoding, LocalOutcome& outcome);
  Status merge_everything(std::int64_t encoding, LocalOutcome& outcome);
  Status enter_local(LocalOutcome& outcome);
  Status compare_models(LocalOutcome& outcome);
  Status share_models(Rank donor, const std::vector<int>& takers, bool anchors, LocalOutcome& outcome);
  Status equalize_buffers();
  void take_anchor(LocalOutcome& outcome);
  Status roll_back(LocalOutcome& outcome);

  const LocalOptions options_;
  const LocalModel model_;
  LocalExchange& exchange_;
  Logger* const log_;
  std::unique_ptr<IntervalController> controller_;
  ScratchPool scratch_;
  std::vector<Anchor> anchors_;                            // indexed by fragment, like the next two
  std::vector<std::unique_ptr<FragmentMerge>> in_flight_;  // nullptr: no merge in flight
  std::vector<Progress> progress_;
  RoundMeter meter_;
  Status failure_;
  bool started_ = false;

  std::int64_t step_ = 0;
  Round round_;
  std::vector<Merge> merges_;
  std::int64_t late_ = 0;  // unreported merges that were late or given up
  std::int64_t share_ = 1;
  std::uint64_t decisions_digest_ = 0;
  int rounds_without_loss_ = 0;  // local ones; kLossNoted: a loss was reported, or the log says that none was
  Times times_;
  Span span_;
  Totals totals_;
};

}  // namespace sirtaki::local_updates
