// ReadyQueue: which partitions of a Plan are ready in this step, handed out strictly in the plan's order.
//
// For: the Dispatcher. Counts, for each partition, the tensors that are still missing. Only the first partition that
// has not been handed out can be taken: a later one that is ready earlier waits, on every rank alike.
// Pure: no I/O, no thread, no clock; used by one thread. Not for: how much may be in flight (credit.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/status.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::scheduler {

class ReadyQueue {
 public:
  // Without a plan there are no tensors and nothing to hand out.
  ReadyQueue() = default;
  explicit ReadyQueue(std::shared_ptr<const Plan> plan);

  // Returns the positions of the partitions that became ready by it, ascending. kInvalidArgument: no such tensor, or
  // ready a second time in this step; nothing changes then.
  Result<std::vector<int>> tensor_ready(int index);

  // The partition whose turn it is, if it is ready.
  std::optional<int> front() const;
  // Hands it out; only when front() has a value.
  void pop();

  // No tensor has become ready in this step.
  bool untouched() const { return ready_tensors_ == 0; }
  // Every partition has been handed out.
  bool exhausted() const { return next_ == missing_.size(); }

  // Begins a step: nothing is ready.
  void restart();

 private:
  std::shared_ptr<const Plan> plan_;
  std::vector<bool> tensor_ready_;
  std::vector<std::size_t> missing_;  // by position: slices whose tensor is not ready
  std::size_t ready_tensors_ = 0;
  std::size_t next_ = 0;
};

}  // namespace sirtaki::scheduler
