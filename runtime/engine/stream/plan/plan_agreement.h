// PlanAgreement: the plan of one stream, the measurements for the next one, and the exchange that agrees on it.
//
// It stands between a stream, which runs steps, and scheduler::Replanner, which decides. Some steps carry an exchange,
// a small MAX allreduce of 64-bit integers that begins at finish() and is part of the step:
//   - The first exchange carries a profile (measurements of steps).
//   - If a better plan follows from the profile, the next step exchanges the digest of that plan.
//   - If all ranks have the same digest, the step after that runs by the new plan.
// If a step is given up, every rank goes back to the first plan, so ranks that saw different exchanges agree again. A
// permanent objection to other plans survives that: the next profile carries it to all ranks.
// Owned by GradientStream; loop thread. Does not send, and does not run plans.
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
#include "runtime/engine/stream/plan/decision_log.h"
#include "runtime/engine/stream/plan/step_recorder.h"
#include "runtime/net/collectives/collectives.h"
#include "scheduler/link/link_meter.h"
#include "scheduler/replanner.h"

namespace sirtaki::engine {

// Dependencies of a PlanAgreement; all outlive it.
struct PlanAgreementDeps {
  Loop& loop;  // for its clock
  Trace& trace;
  Stats& stats;
  Logger* log = nullptr;                   // nullptr: decisions are not written
  const net::Collectives* link = nullptr;  // for its round trip; nullptr: unknown
};

struct PlanAgreementOptions {
  scheduler::ReplannerOptions replanner;
  std::unique_ptr<scheduler::CodecController>
      controller;                          // controller of a policy that changes wire formats; may be nullptr
  scheduler::CodecCosts codec_costs = {};  // measured on this rank
  Rank rank = 0;                           // this rank
  int ranks = 1;                           // number of ranks of the job
};

class PlanAgreement {
 public:
  // `name`: name of the stream. `order`: order in which tensors are expected to become ready at first.
  PlanAgreement(std::string name, const std::shared_ptr<const scheduler::Plan>& first, std::vector<int> order,
                PlanAgreementOptions options, PlanAgreementDeps deps);

  const std::shared_ptr<const scheduler::Plan>& plan() const { return replanner_.current(); }
  // Returns the tensor that is expected to become ready last; -1: no tensor has elements.
  int last_tensor() const { return last_tensor_; }

  // ---- events of a step; free of cost if no other plan can follow from them ----

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
      // The meter reads shorter latencies well enough, and a device may have another network.
      const std::int64_t latency = deps_.link == nullptr ? 0 : Duration(deps_.link->round_trip()).count() / 2;
      meter_.set_least_latency(scheduler::distant_latency(latency));
      meter_.started(now_ns());
    }
  }
  // `allreduced`: traffic of the allreduces of the partition.
  void partition_done(const scheduler::Partition& partition, net::Traffic allreduced) {
    if (measures()) {
      measure(partition, allreduced);
    }
  }
  // Records that the program waited for the step from `waited_since` until `now` and receives its result.
  void notified(const StreamBoard& board, TimePoint waited_since, TimePoint now) {
    if (measures()) {
      recorder_.notified(board, waited_since, now);
    }
  }
  // Records that the step in progress is void; operations in flight end unmeasured.
  void step_void() { meter_.reset(); }
  // Discards the measurements of the link, because later steps use another one.
  void link_changed() { meter_.reset(); }

  // Records a loss of the program; profiles carry its running mean if a policy asks for it.
  void report_loss(double loss);

  // Returns the values of this rank for the exchange of step `step`; empty: the step carries none. Call at finish() of
  // each step. Without `measured` the times of this rank do not count.
  std::vector<std::int64_t> exchange(std::uint64_t step, bool measured);
  // Decides by `reduced`, the result of the exchange of step `step`. Call at the end of that step; plan() may change.
  void decide(std::uint64_t step, const std::vector<std::int64_t>& reduced);
  // Looks for a better plan, if a profile was exchanged. Takes about a millisecond; call after the program has received
  // the result of the step.
  void consider(std::uint64_t step);
  // Returns to the first plan, because a step was given up.
  void restart();

  const DecisionLog& decisions() const { return decisions_; }

 private:
  enum class Kind : std::uint8_t { kNone, kProfile, kDigest };

  // Gauges "streams.NAME.plan_version" and so on, one set for each stream; counters are shared by all streams.
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
  void measure(const scheduler::Partition& partition, net::Traffic allreduced);
  void decide_digest(std::uint64_t step, const std::vector<std::int64_t>& reduced);
  void refuse(const std::string& why);
  void note_link(const scheduler::StepProfile& profile);
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
  const int exchanging_;  // ranks that exchange data over the network
  const bool by_link_;    // the policy follows the link
  scheduler::Replanner replanner_;
  DecisionLog decisions_;
  scheduler::LinkMeter meter_;
  double loss_ = -1;  // running mean; negative if there is none
  StepRecorder recorder_;
  Gauges gauges_;
  Kind open_ = Kind::kNone;                       // kind of the exchange in this step
  bool digest_due_ = false;                       // the step after a profile checks that all ranks decided alike
  std::optional<scheduler::StepProfile> agreed_;  // profile that was not considered yet
  int last_tensor_ = -1;
  int next_last_tensor_ = -1;  // the same for the proposed plan
  bool refused_ = false;       // profiles of this attempt are invalid, so none is exchanged
  // Each warning is logged once in the life of a stream.
  bool logged_refused_ = false;
  bool logged_frozen_ = false;
  bool logged_link_ = false;
  int unknown_links_ = 0;  // consecutive profiles without a link
};

}  // namespace sirtaki::engine
