// Dispatcher: decides, step by step, which partition of a stream's Plan starts next.
//
// Owned by: the engine, one a stream. Pure: no I/O, no thread, no clock; used by the loop's thread alone.
// Partitions start strictly in the plan's order, never skipping one, so all ranks start them in the same order however
// their tensors become ready; credit bounds what is in flight. A step:
//   tensor_ready() for every tensor, next() until empty after each call, finished() for every partition, step_done().
// Not for: running a partition, timeouts, and what to do when a tensor never becomes ready.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/status.h"
#include "scheduler/dispatch/ready_queue.h"
#include "scheduler/plan/credit.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::scheduler {

class Dispatcher {
 public:
  // `credit_bytes`: payload that may be in flight at most; a partition larger than that goes alone.
  explicit Dispatcher(std::int64_t credit_bytes) : credit_limit_(credit_bytes), credit_(credit_bytes) {}

  // At a step border only; takes the plan's credit where that is the smaller one. kInvalidArgument: no plan; kBug: a
  // step is going on.
  Status adopt(std::shared_ptr<const Plan> plan);

  // Returns the positions of the partitions that became ready by it (they may not be next yet), ascending.
  // kInvalidArgument: no such tensor, or ready a second time in this step.
  Result<std::vector<int>> tensor_ready(int index);

  // The next partition to start, now in flight; nullptr when its turn, its tensors or the credit are missing. The
  // partition lives as long as the plan.
  const Partition* next();

  // The partition is no longer in flight, however it ended. kBug: it was not in flight.
  Status finished(int position);

  // Every partition of the step has started and finished.
  bool step_complete() const { return queue_.exhausted() && credit_.in_flight() == 0; }
  // Begins the next step. kBug: this one is not complete.
  Status step_done();
  // Gives the step up: forgets what was ready and in flight; the credit is full again.
  void reset();

  const Plan* plan() const { return plan_.get(); }  // nullptr before adopt()
  const Credit& credit() const { return credit_; }

 private:
  std::shared_ptr<const Plan> plan_;
  std::vector<bool> in_flight_;
  ReadyQueue queue_;
  std::int64_t credit_limit_;
  Credit credit_;
};

}  // namespace sirtaki::scheduler
