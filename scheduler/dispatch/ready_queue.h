// ReadyQueue: hands out the partitions of a Plan that are ready in this step, strictly in the order of the plan.
//
// Used by the Dispatcher. Counts the missing tensors of each partition. Only the first partition that has not been
// handed out can be taken: a later one that is ready earlier waits, on every rank alike.
// Pure: no I/O, no thread, no clock; used by one thread. credit.h limits the bytes in flight.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/status.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::scheduler {

class ReadyQueue {
 public:
  // Without a plan there are no tensors and no partitions.
  ReadyQueue() = default;
  explicit ReadyQueue(std::shared_ptr<const Plan> plan);

  // Returns the positions of the partitions that became ready with this tensor, ascending. kInvalidArgument: no such
  // tensor, or ready a second time in this step; nothing changes then.
  Result<std::vector<int>> tensor_ready(int index);

  // Returns the next partition of the plan if it is ready.
  std::optional<int> front() const;
  // Hands out front(). Requires that front() has a value.
  void pop();

  // Returns true if no tensor has become ready in this step.
  bool untouched() const { return ready_tensors_ == 0; }
  // Returns true if every partition has been handed out.
  bool exhausted() const { return next_ == missing_.size(); }

  // Begins a step in which nothing is ready yet.
  void restart();

 private:
  std::shared_ptr<const Plan> plan_;
  std::vector<bool> tensor_ready_;
  std::vector<std::size_t> missing_;  // indexed by position: slices whose tensor is not ready
  std::size_t ready_tensors_ = 0;
  std::size_t next_ = 0;
};

}  // namespace sirtaki::scheduler
