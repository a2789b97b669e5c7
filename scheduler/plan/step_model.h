// StepModel: the model of a step in nanoseconds: times at which tensors are ready and needed, costs of the link, and
// the outcome of jobs in a given order. planner.h describes the model.
//
// Pure value, internal to scheduler. Times count from the first ready() of the step and saturate instead of
// overflowing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/plan/planner.h"

namespace sirtaki::scheduler {

// A partition in the model.
struct Job {
  std::int64_t payload = 0;  // bytes
  std::int64_t ready = 0;    // latest of the tensors
  std::int64_t need = 0;     // earliest of the tensors
  std::int64_t encode = 0;   // work before the first byte; one job at a time
  std::int64_t decode = 0;   // work after the last byte
  ReductionKind reduction = ReductionKind::kDense;

  // Adds a part of a tensor.
  void add(const PlannedTensor& tensor, std::int64_t numel, const StepProfile& profile);
};

class StepModel {
 public:
  // `profile` and `options` outlive the model; `exchange_bytes` is that of the plan, by default usual_exchange().
  // Requires a profile that knows its link.
  StepModel(const StepProfile& profile, const PlannerOptions& options);
  StepModel(const StepProfile& profile, const PlannerOptions& options, std::int64_t exchange_bytes);

  const StepProfile& profile() const { return profile_; }
  std::int64_t ready(int tensor) const;
  // Returns a time up to the end of the forward pass, at which all tensors are waited for; without overlap, the end of
  // the backward pass.
  std::int64_t need(int tensor) const;
  std::int64_t backward_end() const { return backward_end_; }
  std::int64_t forward_end() const { return forward_end_; }
  // Returns the time for which a payload occupies the link in two exchanges: 2(P-1)/P of its bytes.
  std::int64_t occupancy(std::int64_t payload) const;
  // Returns the idle time of the link for the begin and end of a partition, which more partitions in flight do not
  // hide.
  std::int64_t handling() const { return handling_; }
  // Returns the latency of two exchanges: the time from the last byte of most allreduces to their end.
  std::int64_t latency() const { return 2 * exchange_latency_; }
  // Returns the number of exchanges, one behind the other, of the reduction of a job, and the time for which they
  // occupy the link.
  std::int64_t exchanges(const Job& job) const;
  std::int64_t occupancy(const Job& job) const;
  // Runs jobs in strict order over one link, with at most `credit` bytes in flight. The jobs that are ready last start
  // after the end of the backward pass, as in a stream, which commits the step in finish(). Writes the end of each job
  // to `done` if it is set.
  Prediction run(std::span<const Job> jobs, std::int64_t credit, std::vector<std::int64_t>* done = nullptr) const;
  // Returns the duration of a step whose latest tensor is done `lateness` after its need.
  std::int64_t step_us(std::int64_t lateness) const;

 private:
  const StepProfile& profile_;
  const PlannerOptions& options_;
  std::int64_t backward_end_;
  std::int64_t forward_end_;
  std::int64_t exchange_latency_;
  std::int64_t handling_;
  // The largest payloads of an allreduce in one exchange: among all ranks, and among hosts whose ranks have added up.
  std::int64_t at_once_;
  std::int64_t at_once_by_host_;
};

}  // namespace sirtaki::scheduler
