// The planner's layout: which tensors share a partition, and where big ones are cut, given when they are ready and
// needed. planner.h says what for; used by the planner only. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/plan/step_model.h"

namespace sirtaki::scheduler {

// What layouts are made from; computed once for all candidates. Keeps references: its arguments outlive it.
struct LayoutInputs {
  LayoutInputs(const std::vector<PlannedTensor>& tensors, const LayoutOptions& limits, const StepModel& model);

  bool needed_at_once() const { return needs.empty() || needs.front() == needs.back(); }

  const std::vector<PlannedTensor>& tensors;
  const LayoutOptions& limits;
  const StepModel& model;
  std::vector<int> by_ready;          // tensors with elements; ties by index
  std::vector<std::int64_t> payload;  // by tensor
  std::vector<std::uint32_t> kinds;   // by tensor: those of one may share a partition
  std::uint32_t kind_count = 0;
  std::vector<std::int64_t> starts;      // by place in by_ready: when a link that serves in this order gets to it
  std::vector<std::int64_t> latest;      // the same: when it may start at the latest without ending later overall
  std::vector<std::int64_t> needs;       // of tensors with elements, ascending
  std::vector<std::int64_t> need_bytes;  // payload of the first i of needs
  std::int64_t total_payload = 0;
};

// How a tensor fares in a plan that was made already.
struct TensorTiming {
  std::int64_t start = 0;  // of its first bytes
  std::int64_t slack = 0;  // how much later it could be done before the step got longer
};

struct GroupingRule {
  std::int64_t partition_bytes = 0;  // payload
  // Without: a bucket waits for a member only while that costs less than the messages it saves. With: also where all
  // still ends in time over a link that serves in order of readiness.
  bool patient = false;
  // By tensor; makes a patient bucket keep to half of each member's slack. Empty: all are needed at once.
  std::vector<TensorTiming> timings;
};

// Partitions in the making: the slices of all of them in one list, so that a candidate costs a few allocations only.
struct Grouping {
  struct Group {
    std::uint32_t begin = 0;  // of its slices
    std::uint32_t end = 0;
  };
  std::vector<Slice> slices;
  std::vector<Group> groups;
  std::vector<Job> jobs;  // by group
  // The rule's patience made no difference.
  bool same_without_patience = true;
};

// Every element of every tensor is in one group; pieces of a tensor follow each other.
Grouping group_tensors(const LayoutInputs& inputs, const GroupingRule& rule);

}  // namespace sirtaki::scheduler
