#include "scheduler/dispatcher.h"

#include <algorithm>
#include <string>

namespace sirtaki::scheduler {
namespace {

std::vector<std::int64_t> dense_sizes(const Plan& plan) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(plan.partitions().size());
  for (const Partition& partition : plan.partitions()) {
    sizes.push_back(static_cast<std::int64_t>(partition.size_bytes()));
  }
  return sizes;
}

}  // namespace

Status Dispatcher::adopt(std::shared_ptr<const Plan> plan, std::vector<std::int64_t> payload_bytes) {
  if (plan == nullptr) {
    return invalid_argument("there is no plan to adopt");
  }
  if (payload_bytes.empty()) {
    payload_bytes = dense_sizes(*plan);
  }
  if (payload_bytes.size() != plan->partitions().size()) {
    return invalid_argument(std::to_string(payload_bytes.size()) + " payload sizes for a plan of " +
                            std::to_string(plan->partitions().size()) + " partitions");
  }
  if (std::any_of(payload_bytes.begin(), payload_bytes.end(), [](std::int64_t bytes) { return bytes < 0; })) {
    return invalid_argument("a payload has a negative size");
  }
  if (!queue_.untouched() || credit_.in_flight() != 0) {
    return bug("a plan is adopted in the middle of a step");
  }
  credit_ = Credit(plan->credit_bytes() == 0 ? credit_limit_ : std::min(credit_limit_, plan->credit_bytes()));
  queue_ = ReadyQueue(plan);
  in_flight_.assign(plan->partitions().size(), false);
  payload_bytes_ = std::move(payload_bytes);
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
  if (!credit_.fits(payload_bytes_[position])) {
    return nullptr;
  }
  credit_.take(payload_bytes_[position]);
  in_flight_[position] = true;
  queue_.pop();
  return &plan_->partitions()[position];
}

Status Dispatcher::finished(int position) {
  if (position < 0 || static_cast<std::size_t>(position) >= in_flight_.size() ||
      !in_flight_[static_cast<std::size_t>(position)]) {
    return bug("partition " + std::to_string(position) + " finished but was not in flight");
  }
  in_flight_[static_cast<std::size_t>(position)] = false;
  credit_.give_back(payload_bytes_[static_cast<std::size_t>(position)]);
  return {};
}

Status Dispatcher::step_done() {
  if (!step_complete()) {
    return bug("a step ends with " + std::to_string(credit_.in_flight()) + " partitions in flight" +
               (queue_.exhausted() ? "" : " and others not started"));
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
