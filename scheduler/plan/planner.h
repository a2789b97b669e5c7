// Planner: makes a Plan from the profile of past steps, and predicts the duration of a step under any plan.
//
// Used by the replanner, the simulator, and the bounds of benchmarks. The model of a step:
//   - Gradients become ready at given times.
//   - One link carries first halves (reduce) and second halves (gather) of partitions in the order of their arrival,
//     2(P-1)/P of their bytes altogether, with a fixed handling time each. A gather has one half, and so has an
//     allreduce in one exchange, of more bytes.
//   - A second half arrives a latency for each exchange after the end of the first half, so it queues behind partitions
//     that started meanwhile; the credit bounds their bytes.
//   - The forward pass stalls at a tensor that is not done.
//   - Compressed payloads are encoded before they are sent and decoded afterwards, one at a time, while others are
//     being sent.
//   - Step time = backward + forward + the largest delay of a tensor beyond its need.
//
// Preemptive earliest-need-first minimises that delay on one machine (W. A. Horn, Some simple scheduling algorithms,
// 1974); preemption is possible at the borders of partitions. If all tensors are needed at once (no overlap with the
// forward pass), the order of readiness is the same.
// Pure: no I/O, no thread, no clock. Integers only, and ties are broken by tensor index, so all ranks compute the same
// plan. replanner.h handles the agreement and the time of the next plan.
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
  int ranks = 1;                               // ranks that exchange data over the network
  int ranks_per_host = 1;                      // more than 1: `ranks` counts hosts, whose ranks add up first
  LayoutOptions limits;                        // upper limits of partitions and buckets
  std::int64_t credit_limit_bytes = 16 << 20;  // upper limit of the credit
  std::int64_t exchange_bytes = 16 << 10;      // a sum of this size may go to all ranks at once, whatever the link
  bool forward = false;                        // the next forward pass waits for tensors one by one
};

// In microseconds from the first ready() of the step.
struct Prediction {
  std::int64_t step_us = 0;     // until the next step's first ready()
  std::int64_t exposed_us = 0;  // the part in which the program waits
  std::int64_t done_us = 0;     // until the last tensor is reduced

  friend bool operator==(const Prediction&, const Prediction&) = default;
};

// Partition size and credit for a link. Latency costs a partition at most a tenth even if nothing else is in flight;
// the bytes in flight hide both the latency and short pauses of the process. Clamped to the options; with an unknown
// link, the values of the options.
struct Sizes {
  std::int64_t partition_bytes = 0;
  std::int64_t credit_bytes = 0;
};
Sizes sizes_for_link(const StepProfile& profile, const PlannerOptions& options);

// Returns Plan::exchange_bytes() for a link between hosts that are not distant; kAnySize if the link is unknown.
std::int64_t usual_exchange(const StepProfile& profile, const PlannerOptions& options);

// Returns the best plan found. kInvalidArgument: lists that do not fit the tensors, bad options, a profile without a
// link.
Result<std::shared_ptr<const Plan>> plan_schedule(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                                                  const PlannerOptions& options, std::uint64_t version);

// Returns the plan of the first layout, in the given order of tensors, with the limit of one exchange that is better on
// this link if all tensors are ready at once. Errors as of Plan::build().
Result<std::shared_ptr<const Plan>> plan_in_order(const std::vector<PlannedTensor>& tensors,
                                                  const std::vector<int>& order, const StepProfile& link,
                                                  const PlannerOptions& options, std::uint64_t version);

// Returns the prediction for a plan. Requires (SRT_CHECK) a profile that fits the tensors of the plan and knows its
// link.
Prediction predict(const Plan& plan, const StepProfile& profile, const PlannerOptions& options);

// Returns the prediction for the tensors in partitions that fit the link, in the best order: nearly the result of
// plan_schedule(), in a fraction of its time. Requirements as for predict().
Prediction predict_tensors(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                           const PlannerOptions& options);

// Returns a lower bound of the step time of all plans in the model: that of partitions and messages without overhead.
std::int64_t lower_bound_us(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                            const PlannerOptions& options);

}  // namespace sirtaki::scheduler
