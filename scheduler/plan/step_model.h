// StepModel: the planner's model of a step in nanoseconds: when tensors are ready and needed, what the link costs, and
// how jobs in a given order come out. planner.h says what the model is.
//
// Used inside scheduler only. Pure value; times count from the step's first ready() and saturate instead of
// overflowing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/plan/planner.h"

namespace sirtaki::scheduler {

// A partition as the model sees it.
struct Job {
  std::int64_t payload = 0;  // bytes
  std::int64_t ready = 0;    // the latest of its tensors
  std::int64_t need = 0;     // the earliest of its tensors
  bool one_way = false;      // all bytes go in one half (a gather)
  std::int64_t encode = 0;   // work before the first byte, and after the last: one job's at a time
  std::int64_t decode = 0;

  // Adds a part of a tensor to it.
  void add(const PlannedTensor& tensor, std::int64_t numel, const StepProfile& profile);
};

class StepModel {
 public:
  // `profile` and `options` outlive it. The profile knows its link and has `tensors` entries.
  StepModel(const StepProfile& profile, const PlannerOptions& options);

  const StepProfile& profile() const { return profile_; }
  std::int64_t ready(int tensor) const;
  // Never after the end of the forward pass, where all is waited for; the end of backward without overlap.
  std::int64_t need(int tensor) const;
  std::int64_t backward_end() const { return backward_end_; }
  std::int64_t forward_end() const { return forward_end_; }
  // Time the link is busy with a payload: 2(P-1)/P of its bytes.
  std::int64_t occupancy(std::int64_t payload) const;
  // Time in which it is idle because a partition begins and ends, however many are in flight.
  std::int64_t handling() const { return handling_; }
  // From the last byte until the partition is done: two messages.
  std::int64_t latency() const { return latency_; }
  // Jobs started in strict order over one link, at most `credit` bytes in flight. Those that are ready last start after
  // backward's end, as in a stream, whose finish() commits the step. `done`, where given, gets the time at which each
  // is done.
  Prediction run(std::span<const Job> jobs, std::int64_t credit, std::vector<std::int64_t>* done = nullptr) const;
  // Of a step in which the tensor that is latest is done `lateness` after its need.
  std::int64_t step_us(std::int64_t lateness) const;

 private:
  const StepProfile& profile_;
  const PlannerOptions& options_;
  std::int64_t backward_end_;
  std::int64_t forward_end_;
  std::int64_t latency_;
  std::int64_t handling_;
};

}  // namespace sirtaki::scheduler
