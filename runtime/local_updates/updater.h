// LocalUpdater: ranks train by themselves for some steps, and their models are merged behind the steps that follow.
//
// Every rank has an anchor, the model that all last agreed on, bit-identical everywhere, and its own model, which is
// the anchor and what this rank has done since. The model is cut into fragments; each takes a snapshot every H steps,
// and its mean over ranks becomes the next anchor D steps later, in the same step on all ranks (merge.h):
//   D = 0   the model becomes the anchor
//   D > 0   the model moves by what the mean differs from the snapshot; what it did meanwhile stays
//   codec   the model loses what of its difference arrived, and takes the mean of all; the rest comes with the next
// H, D and the mode are the interval controller's (runtime/local_updates/controller/interval_controller.h), which every
// rank feeds the same:
//   kSync   the program averages gradients itself, in every step; this only counts and decides
//   kLocal  as above. kDrain: what is in flight is finished, then all is merged at once, so that model and anchor are
//           equal everywhere
// A round is reported D steps before its end, so that nobody waits for the decision.
// Calls are collective: every rank makes the same ones after the same steps. An error is final: each later call
// returns it. Owned by an adapter; one thread at a time, the training's. No lock, no thread, no clock of its own.
// Method: Local SGD (Stich, 2019) with CoCoD-SGD's correction (Shen et al., 2019); fragments as in Streaming DiLoCo
// (Douillard et al., 2025); compressed as CSER (Xie et al., 2020) and LOSCAR-SGD do.
// Not for: averaging gradients, optimizer state, elastic membership.
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

// What a call has done, for the program to follow.
struct LocalOutcome {
  bool model_changed = false;    // parameters were written
  bool reset_optimizer = false;  // this rank's optimizer state belongs to a model that is gone
  // On all ranks: gradients are averaged from here on, so optimizer states have to be made equal, or models part.
  bool equalize_optimizer = false;
  // In order; most often none. Alarms with kResetRank ask that their rank takes the optimizer state of `donor`.
  std::vector<Decision> decisions;
  Rank donor = -1;
};

// What is in force from now on.
struct LocalPace {
  bool averages_gradients = true;  // the program does, in its next step
  std::int64_t steps = 1;          // between two merges of a fragment
  std::int64_t delay = 0;          // from a snapshot to its merge
};

class LocalUpdater {
 public:
  // All outlive it: `exchange`, whose fragments are those of `model`, `log` (may be nullptr), and what model borrows.
  // kInvalidArgument: options that check() refuses. Exchanges nothing.
  static Result<std::unique_ptr<LocalUpdater>> make(const LocalOptions& options, LocalModel model,
                                                    LocalExchange& exchange, Logger* log);
  ~LocalUpdater();
  LocalUpdater(const LocalUpdater&) = delete;
  LocalUpdater& operator=(const LocalUpdater&) = delete;

  // Once, before the first step: checks that all ranks have the same options and model, and decides. Models are equal.
  Result<LocalOutcome> start();
  // After every step of the optimizer.
  Result<LocalOutcome> step(const LocalStep& step);
  // Model and anchor are equal on all ranks then, and buffers, too.
  Result<LocalOutcome> drain();
  // Whether the program wants averaged gradients: at once, or as usual from the next decision on.
  Result<LocalOutcome> synchronous(bool wanted);

  LocalPace pace() const;
  const Interval& interval() const { return controller_->current(); }
  std::int64_t steps() const { return step_; }
  // The last agreed values of all fragments; equal to the model after a drain.
  const std::vector<Anchor>& anchors() const { return anchors_; }
  std::uint64_t anchors_digest() const;

  // State for a checkpoint; the model is the program's. kInvalidArgument: something is in flight; drain() first.
  Result<std::vector<std::byte>> saved() const;
  // In place of start(), with the model of that moment. kCorrupt: not of these options, ranks and fragments; then
  // nothing has changed. Exchanges nothing.
  Status restore(ConstBytes saved);

  // mode, interval, delay, reason, rounds, waits, bytes, divergence, alarms, memory.
  std::string stats_json() const;

 private:
  static constexpr int kDrainAttempts = 3;

  // What a fragment's differences cover.
  struct Cover {
    std::int64_t steps = 0;
    double lr_sum = 0;
    bool lr_known = true;
    void add(const Cover& other);
  };
  struct Progress {
    Cover since;                 // the last snapshot
    Cover older;                 // and before it, back to the last merge
    std::int64_t snapshot = -1;  // the next one's step
    bool reset = false;          // the model went back to the anchor since: this rank has nothing to say
    bool merged = false;         // the model is the anchor, on all ranks
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
    std::int64_t compared_at = 0;  // parameters, while gradients are averaged
    std::int64_t pull_every = 0;   // steps of this round; 0: nothing is pulled back
    std::optional<Posted> posted;  // a round whose decision is not there yet
  };
  struct Times {
    TimePoint begun;
    std::int64_t begun_us = 0;         // of the job before a checkpoint
    std::optional<TimePoint> left_at;  // the end of the last call
  };
  // The span of the trace that is open.
  struct Span {
    std::string name;  // empty: none has begun
    TimePoint begin;
  };
  struct Totals {
    std::uint64_t rounds = 0;
    std::uint64_t merges = 0;
    std::uint64_t given_up = 0;
    std::uint64_t late = 0;
    std::uint64_t excluded = 0;  // merges in which this rank did not count
    std::uint64_t sent_bytes = 0;
    std::uint64_t repairs = 0;
    std::uint64_t drains = 0;
    std::int64_t waited_ns = 0;
    std::vector<std::uint64_t> alarms;  // by guard
    // Of the last decision.
    std::int64_t statistics_steps = 1;
    std::int64_t link_steps = 1;
    std::int64_t cost_permille = 0;
    double divergence = 0;  // the last round's variance over the norm of the mean difference, both squared
  };

  LocalUpdater(const LocalOptions& options, LocalModel model, LocalExchange& exchange, Logger* log);

  bool is_local() const;
  // Ends a public call: keeps the first error, notes the time.
  Result<LocalOutcome> end_call(const Status& status, LocalOutcome outcome);
  Status check_running() const;
  std::int64_t now_us() const;  // since the job began

  static void save(const Merge& merge, WireWriter& out);
  static Merge load_merge(WireReader& in, std::size_t ranks);
  Status load_fragments(WireReader& in, std::vector<Anchor>& anchors, std::vector<Progress>& fragments) const;

  // ---- updater.cc: a step ----
  void count(const LocalStep& step);
  Status local_step(LocalOutcome& outcome);
  Status poll();
  Status snapshot(std::size_t fragment, std::int64_t delay, bool may_compress, LocalOutcome& outcome);
  Status conclude(std::size_t fragment, LocalOutcome& outcome);
  void on_merged(const FragmentMerge& merge);
  void note_late(const FragmentMerge& merge, Duration waited);
  void on_given_up(const FragmentMerge& merge);
  void pull_back(LocalOutcome& outcome);
  MergeDeps merge_deps();

  // ---- updater_round.cc: reports and decisions ----
  void begin_round(std::int64_t base);
  // Ends the one there is. Empty: none follows.
  void begin_span(std::string name);
  std::int64_t lag() const;
  Status post_round(std::int64_t end, bool compare);
  Status decide_posted(LocalOutcome& outcome);
  Status discard_round();
  Status handle_alarms(const std::vector<Alarm>& alarms, bool anchors, LocalOutcome& outcome);
  Status follow_mode(Mode before, LocalOutcome& outcome);
  void record(const Decision& decision);
  Result<Reports> exchange_reports(Channel channel, ConstBytes mine, const std::string& what);
  Result<Reports> receive(Channel channel, const std::string& what);

  // ---- updater_drain.cc: equal models ----
  Status finish_flights(LocalOutcome& outcome);
  Status drain_now(LocalOutcome& outcome);
  Status merge_everything(LocalOutcome& outcome);
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
  std::vector<Anchor> anchors_;                            // by fragment, and so are the next two
  std::vector<std::unique_ptr<FragmentMerge>> in_flight_;  // nullptr: nothing is
  std::vector<Progress> progress_;
  RoundMeter meter_;
  Status failure_;
  bool started_ = false;

  std::int64_t step_ = 0;
  Round round_;
  std::vector<Merge> merges_;
  std::int64_t late_ = 0;  // merges that were late or given up, not reported yet
  std::int64_t share_ = 1;
  std::uint64_t decisions_digest_ = 0;
  Times times_;
  Span span_;
  Totals totals_;
};

}  // namespace sirtaki::local_updates
