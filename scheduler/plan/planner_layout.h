// The layout of the planner: the tensors that share a partition, and the borders of large ones, from the times at which
// tensors are ready and needed. planner.h describes the model. Internal to the planner. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/plan/step_model.h"

namespace sirtaki::scheduler {

// Inputs of all candidate layouts, computed once. Keeps references: its arguments outlive it.
struct LayoutInputs {
  LayoutInputs(const std::vector<PlannedTensor>& tensors, const LayoutOptions& limits, const StepModel& model);

  bool needed_at_once() const { return needs.empty() || needs.front() == needs.back(); }

  const std::vector<PlannedTensor>& tensors;
  const LayoutOptions& limits;
  const StepModel& model;
  std::vector<int> by_ready;          // tensors with elements; ties by index
  std::vector<std::int64_t> payload;  // indexed by tensor
  std::vector<std::uint32_t> kinds;   // indexed by tensor; tensors of one kind may share a partition
  std::uint32_t kind_count = 0;
  // Indexed by place in by_ready: the time at which a link that serves in this order reaches the tensor.
  std::vector<std::int64_t> starts;
  // Indexed by place in by_ready: the latest start that does not prolong the whole.
  std::vector<std::int64_t> latest;
  std::vector<std::int64_t> needs;       // ascending, for tensors with elements
  std::vector<std::int64_t> need_bytes;  // payload of the first i entries of needs
  std::int64_t total_payload = 0;
};

// Start and slack of a tensor in an earlier candidate.
struct TensorTiming {
  std::int64_t start = 0;  // first bytes on the link
  std::int64_t slack = 0;  // possible delay of its end before the step gets longer
};

struct GroupingRule {
  std::int64_t partition_bytes = 0;  // payload
  // False: a bucket waits for a member only while the wait costs less than the messages it saves. True: also if all
  // tensors would still be done in time on a link that serves in order of readiness.
  bool patient = false;
  // Indexed by tensor: a patient bucket uses at most half of the slack of each member. Empty: all are needed at once.
  std::vector<TensorTiming> timings;
};

// Partitions under construction. One list holds the slices of all of them, so that a candidate costs few allocations.
struct Grouping {
  struct Group {
    std::uint32_t begin = 0;  // slice index
    std::uint32_t end = 0;
  };
  std::vector<Slice> slices;
  std::vector<Group> groups;
  std::vector<Job> jobs;  // indexed by group
  // The layout is the same with `patient` set to false.
  bool same_without_patience = true;
};

// Assigns every element of every tensor to one group; pieces of a tensor follow each other.
Grouping group_tensors(const LayoutInputs& inputs, const GroupingRule& rule);

}  // namespace sirtaki::scheduler
