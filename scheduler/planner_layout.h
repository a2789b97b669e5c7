// The planner's layout: which tensors share a partition, and where big ones are cut, given when they are ready and
// needed. planner.h says what for; used by the planner only. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/plan.h"
#include "scheduler/step_model.h"

namespace sirtaki::scheduler {

// What layouts are made from; computed once for all candidates. Keeps references: its arguments outlive it.
struct LayoutInputs {
  LayoutInputs(const std::vector<PlannedTensor>& tensors, const LayoutOptions& limits, const StepModel& model);

  const std::vector<PlannedTensor>& tensors;
  const LayoutOptions& limits;
  const StepModel& model;
  std::vector<int> by_ready;             // tensors with elements; ties by index
  std::vector<std::int64_t> payload;     // by tensor
  std::vector<std::int64_t> starts;      // by place in by_ready: when a link that serves in this order gets to it
  std::vector<std::int64_t> latest;      // the same: when it may start at the latest without ending later overall
  std::vector<std::int64_t> needs;       // of tensors with elements, ascending
  std::vector<std::int64_t> need_bytes;  // payload of the first i of needs
  std::int64_t total_payload = 0;
};

struct GroupingRule {
  std::int64_t partition_bytes = 0;  // payload
  std::int64_t credit_bytes = 0;
  // A bucket may wait for a member as long as all still ends in time over a link that serves in order of readiness;
  // else only while that costs less than the messages it saves.
  bool patient = false;
};

// A partition in the making.
struct Group {
  Job job;
  std::vector<Slice> slices;

  Partition to_partition(const std::vector<PlannedTensor>& tensors, const Decision& decision) &&;
};

// In order of readiness of their first members; every element of every tensor is in one.
std::vector<Group> group_tensors(const LayoutInputs& inputs, const GroupingRule& rule);

}  // namespace sirtaki::scheduler
