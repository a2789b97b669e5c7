// Planner: makes a Plan from what steps looked like, and foretells how long a step takes under any plan.
//
// For: the replanner, the simulator, the bounds of benchmarks. Model of a step: gradients become ready at given times;
// one link carries first halves (reduce) and second halves (gather) of partitions in the order in which they come, in
// all 2(P-1)/P of their bytes and a fixed handling time each; a second half comes one message's latency after the first
// is through, so it queues behind what was started meanwhile, which the credit bounds; the forward pass stalls where it
// needs a tensor that is not done. What a gather sends goes in one half. Lossy payloads are encoded before and decoded
// after, one at a time, beside the sending of others.
// Time of a step = backward + forward + the largest delay of a tensor over its need. Preemptive earliest-need-first
// minimises that delay on one machine (W. A. Horn, Some simple scheduling algorithms, 1974); preemption happens at the
// borders of partitions. Where all is needed at once (no overlap with the forward pass) that is the order of readiness.
// Pure: no I/O, no thread, no clock; integers only, ties broken by tensor index, so all ranks compute the same.
// Not for: agreement, and when to plan anew (replanner.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "scheduler/plan/plan.h"
#include "scheduler/plan/profile.h"

namespace sirtaki::scheduler {

struct PlannerOptions {
  int ranks = 1;                               // between which data travels over the network
  LayoutOptions limits;                        // partitions and buckets never get bigger than these
  std::int64_t credit_limit_bytes = 16 << 20;  // nor the credit
  bool forward = false;                        // tensors are waited for one by one in the next forward pass
};

// All from the step's first ready() on, in microseconds.
struct Prediction {
  std::int64_t step_us = 0;     // until the next step's first ready()
  std::int64_t exposed_us = 0;  // of that, what the program waits
  std::int64_t done_us = 0;     // until the last tensor is reduced

  friend bool operator==(const Prediction&, const Prediction&) = default;
};

// Partition size and credit that fit a link: latency costs a partition at most a tenth even where nothing else is in
// flight, and what is in flight hides it, and short pauses of the process, too. Clamped to the options. Unknown link:
// the options' own values.
struct Sizes {
  std::int64_t partition_bytes = 0;
  std::int64_t credit_bytes = 0;
};
Sizes sizes_for_link(const StepProfile& profile, const PlannerOptions& options);

// The best plan the planner finds. kInvalidArgument: lists that do not fit the tensors, bad options, a profile without
// a link.
Result<std::shared_ptr<const Plan>> plan_schedule(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                                                  const PlannerOptions& options, std::uint64_t version);

// What the model says of a plan. Needs a profile that fits the plan's tensors and knows its link; SRT_CHECK otherwise.
Prediction predict(const Plan& plan, const StepProfile& profile, const PlannerOptions& options);

// The same of the tensors in partitions that fit the link, in the best order: nearly what plan_schedule() finds, in a
// fraction of its time. Needs as above.
Prediction predict_tensors(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                           const PlannerOptions& options);

// No plan has a step shorter than this in the model: the same, with partitions and messages that cost nothing.
std::int64_t lower_bound_us(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                            const PlannerOptions& options);

}  // namespace sirtaki::scheduler
