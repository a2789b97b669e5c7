// StepState: everything that belongs to one step of a stream. Made for each step and dropped with it.
//
// Owned by GradientStream; loop thread. Plain values; GradientStream keeps the order of events, and counts the
// operations in flight, because operations of a step that was given up outlive the step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/base/types.h"
#include "runtime/engine/reduction/reduction.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::engine {

struct StepState {
  StepState() = default;
  // Makes the state of a step under `plan` that has not begun: no tensor is ready.
  explicit StepState(const scheduler::Plan& plan);

  // Returns whether nothing of the step has happened on this rank.
  bool untouched() const { return first_ready == TimePoint() && !finished; }

  // All vectors but `held` have one entry for each tensor.
  std::vector<TensorView> views;
  std::vector<std::uint8_t> submitted;
  std::vector<std::uint8_t> present;
  std::vector<std::uint8_t> used;    // some rank had a gradient
  std::vector<std::size_t> missing;  // slices without a result
  std::vector<int> held;             // absent tensors that wait for the exchange of flags

  bool finished = false;
  std::uint64_t mark = 0;    // mark of the board for this step; set when finished
  bool commit_done = false;  // the partition at the commit point is reduced
  bool asked_for_flags = false;
  bool flags_started = false;
  bool flags_done = false;

  // Measurements that ranks exchange to agree on a plan; nullptr: none in this step. Shared with the collective, which
  // may outlive the step.
  std::shared_ptr<std::vector<std::int64_t>> exchanged;
  bool exchange_done = false;

  bool gate_started = false;  // this rank holds all results of the step
  TimePoint gate_since;
  bool gate_done = false;    // all ranks do
  bool gate_failed = false;  // some rank has not entered the gate, or its entry has not arrived

  int partitions_started = 0;
  int partitions_done = 0;
  std::map<int, std::shared_ptr<Reduction>> reductions;  // compressed partitions in flight, by position
  TimePoint first_ready;
  TimePoint waited_since;
};

}  // namespace sirtaki::engine
