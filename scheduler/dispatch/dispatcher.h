// Dispatcher: decides which partition of the Plan of a stream starts next.
//
// Partitions start strictly in the order of the plan, without exception, so all ranks start them in the same order,
// whatever the order in which their tensors become ready. Credit bounds the bytes in flight. In one step, call
// tensor_ready() for every tensor and next() after each call until it is empty, finished() for every partition, and
// step_done().
// The engine owns a Dispatcher for each stream and calls it on the loop thread. Pure: no I/O, no thread, no clock. The
// engine runs partitions, keeps deadlines, and handles tensors that never become ready.
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
  // `credit_bytes` limits the payload in flight; a larger partition travels alone.
  explicit Dispatcher(std::int64_t credit_bytes) : credit_limit_(credit_bytes), credit_(credit_bytes) {}

  // Adopts a plan between two steps. The smaller of both credits applies. kInvalidArgument: no plan; kBug: in a step.
  Status adopt(std::shared_ptr<const Plan> plan);

  // Returns the positions of the partitions that became ready with this tensor, ascending; others may have to start
  // first. kInvalidArgument: no such tensor, or ready a second time in this step.
  Result<std::vector<int>> tensor_ready(int index);

  // Returns the next partition and counts it as in flight; nullptr if it is not ready or the credit is exhausted. The
  // partition lives as long as the plan.
  const Partition* next();

  // Ends a partition, with or without success. kBug: it was not in flight.
  Status finished(int position);

  // Returns true if every partition of the step has started and finished.
  bool step_complete() const { return queue_.exhausted() && credit_.in_flight() == 0; }
  // Begins the next step. kBug: this one is not complete.
  Status step_done();
  // Abandons the step: nothing is ready or in flight, and the credit is full again.
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
