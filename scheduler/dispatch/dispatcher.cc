#include "scheduler/dispatch/dispatcher.h"

#include <algorithm>
#include <string>

namespace sirtaki::scheduler {

Status Dispatcher::adopt(std::shared_ptr<const Plan> plan) {
  if (plan == nullptr) {
    return invalid_argument("there is no plan to adopt");
  }
  if (!queue_.untouched() || credit_.in_flight() != 0) {
    return bug("a plan is adopted in the middle of a step");
  }
  credit_ = Credit(plan->credit_bytes() == 0 ? credit_limit_ : std::min(credit_limit_, plan->credit_bytes()));
  queue_ = ReadyQueue(plan);
  in_flight_.assign(plan->partitions().size(), false);
  plan_ = std::move(plan);
  return {};
}

Result<std::vector<int>> Dispatcher::tensor_ready(int index) {
  return queue_.tensor_ready(index);
}

const Partition* Dispatcher::next() {
  const std::optional<int> front = queue_.front();
  if (!front) {
    return nullptr;
  }
  const auto position = static_cast<std::size_t>(*front);
  const Partition& partition = plan_->partitions()[position];
  if (!credit_.fits(partition.wire_bytes)) {
    return nullptr;
  }
  credit_.take(partition.wire_bytes);
  in_flight_[position] = true;
  queue_.pop();
  return &partition;
}

Status Dispatcher::finished(int position) {
  if (position < 0 || static_cast<std::size_t>(position) >= in_flight_.size() ||
      !in_flight_[static_cast<std::size_t>(position)]) {
    return bug("partition " + std::to_string(position) + " finished but was not in flight");
  }
  in_flight_[static_cast<std::size_t>(position)] = false;
  credit_.give_back(plan_->partitions()[static_cast<std::size_t>(position)].wire_bytes);
  return {};
}

Status Dispatcher::step_done() {
  if (!step_complete()) {
    return bug("a step ends with " + std::to_string(credit_.in_flight()) + " partitions in flight" +
               (queue_.exhausted() ? "" : " and others not yet started"));
  }
  queue_.restart();
  return {};
}

void Dispatcher::reset() {
  queue_.restart();
  in_flight_.assign(in_flight_.size(), false);
  credit_.reset();
}

}  // namespace sirtaki::scheduler
