// PlanAgreement: the plan of one stream, what is measured for the next one, and what ranks exchange to agree on it.
//
// Between a stream, which runs steps, and scheduler::Replanner, which decides. Some steps carry an exchange: a small
// MAX all-reduce of 64-bit integers that begins at finish() and is part of the step. First a profile; if a better plan
// follows from it, the digest of that plan in the next step; if all ranks have the same, the step after runs by it.
// A step given up puts every rank back to the first plan, so ranks that saw different exchanges agree again. What spoke
// against other plans for good is not forgotten: the next profile tells it to all ranks.
// Owned by GradientStream; loop thread. Not for: sending, and running a plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/engine/common/trace.h"
#include "runtime/engine/stream/decision_log.h"
#include "runtime/engine/stream/step_recorder.h"
#include "scheduler/link/link_meter.h"
#include "scheduler/replanner.h"

namespace sirtaki::engine {

// All outlive the keeper.
struct PlanAgreementDeps {
  Loop& loop;  // for its clock
  Trace& trace;
  Stats& stats;
  Logger* log = nullptr;  // nullptr: decisions are not written
};

struct PlanAgreementOptions {
  scheduler::ReplannerOptions replanner;
  std::unique_ptr<scheduler::CodecController>
      controller;                          // of a policy that changes how tensors travel; may be nullptr
  scheduler::CodecCosts codec_costs = {};  // this rank's
  Rank rank = 0;                           // which this is
  int ranks = 1;                           // of the job
};

class PlanAgreement {
 public:
  // `order`: in which tensors are expected to become ready at first. `name`: of the stream.
  PlanAgreement(std::string name, const std::shared_ptr<const scheduler::Plan>& first, std::vector<int> order,
                PlanAgreementOptions options, PlanAgreementDeps deps);

  const std::shared_ptr<const scheduler::Plan>& plan() const { return replanner_.current(); }
  // The tensor that is expected to become ready last; -1: there is none with elements.
  int last_tensor() const { return last_tensor_; }

  // ---- what happens in a step; costs nothing where no other plan can follow from it ----

  void ready(int index, TimePoint at) {
    if (measures()) {
      recorder_.ready(index, at);
    }
  }
  void finished(TimePoint at) {
    if (measures()) {
      recorder_.finished(at);
    }
  }
  void partition_started() {
    if (measures()) {
      meter_.started(now_ns());
    }
  }
  void partition_done(const scheduler::Partition& partition) {
    if (measures()) {
      meter_.finished(now_ns(), partition.wire_bytes);
    }
  }
  // The program waited for the step from `waited_since` until `now` and is told that it is done.
  void told(const StreamBoard& board, TimePoint waited_since, TimePoint now) {
    if (measures()) {
      recorder_.told(board, waited_since, now);
    }
  }
  // The step in progress is void: what is in flight ends unmeasured.
  void step_void() { meter_.reset(); }
  // What was measured so far was over another link than what comes.
  void link_changed() { meter_.reset(); }

  // The program's loss, where it tells any; profiles carry its running mean if a policy asks for it.
  void report_loss(double loss);

  // What this rank puts into the exchange of step `step`, asked for at its finish(); empty: the step carries none.
  // `measured`: this rank's own times count; without, it has an opinion on nothing.
  std::vector<std::int64_t> exchange(std::uint64_t step, bool measured);
  // The step with that exchange is done; `reduced` is what came out. plan() may be another one from here on.
  void settle(std::uint64_t step, const std::vector<std::int64_t>& reduced);
  // Takes its time (about a millisecond): to be called when the program has been told of the step.
  void consider(std::uint64_t step);
  // A step was given up; plan() is the first one.
  void restart();

  const DecisionLog& decisions() const { return decisions_; }

 private:
  enum class Kind : std::uint8_t { kNone, kProfile, kDigest };

  // "streams.NAME.plan_version" and so on: of this stream alone, where counters add up over all.
  struct Gauges {
    Gauges(Stats& stats, const std::string& stream);
    Gauge& plan_version;
    Gauge& link_latency_ns;
    Gauge& link_bytes_per_second;
    Gauge& measured_step_us;
    Gauge& predicted_step_us;
  };

  std::int64_t now_ns() const { return deps_.loop.now().time_since_epoch().count(); }
  bool measures() const {
    return !refused_ && !replanner_.frozen() && replanner_.objection() == scheduler::Objection::kNone;
  }
  void settle_digest(std::uint64_t step, const std::vector<std::int64_t>& reduced);
  void refuse(const std::string& why);
  void report();
  std::size_t losses() const { return replanner_.wants_losses() ? static_cast<std::size_t>(ranks_) : 0; }
  int last_of(const scheduler::StepProfile& profile) const;

  const std::string name_;
  const std::vector<int> order_;
  const std::uint64_t first_version_;
  PlanAgreementDeps deps_;
  const scheduler::CodecCosts codec_costs_;
  const Rank rank_;
  const int ranks_;
  scheduler::Replanner replanner_;
  DecisionLog decisions_;
  scheduler::LinkMeter meter_;
  double loss_ = -1;  // running mean; below 0: none
  StepRecorder recorder_;
  Gauges gauges_;
  Kind open_ = Kind::kNone;                       // the exchange in this step
  bool digest_due_ = false;                       // the step after a profile tells whether all decided alike
  std::optional<scheduler::StepProfile> agreed_;  // not considered yet
  int last_tensor_ = -1;
  int next_last_tensor_ = -1;  // of the proposed plan
  bool refused_ = false;       // profiles make no sense in this attempt: no other is exchanged
  // Said once in a stream's life.
  bool told_refused_ = false;
  bool told_frozen_ = false;
};

}  // namespace sirtaki::engine
