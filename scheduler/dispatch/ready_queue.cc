#include "scheduler/dispatch/ready_queue.h"

#include <string>

#include "runtime/base/check.h"

namespace sirtaki::scheduler {

ReadyQueue::ReadyQueue(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {
  SRT_CHECK(plan_ != nullptr);
  tensor_ready_.resize(plan_->tensors().size());
  missing_.resize(plan_->partitions().size());
  restart();
}

Result<std::vector<int>> ReadyQueue::tensor_ready(int index) {
  if (index < 0 || static_cast<std::size_t>(index) >= tensor_ready_.size()) {
    return invalid_argument("tensor " + std::to_string(index) + " became ready, but the plan has " +
                            std::to_string(tensor_ready_.size()) + " tensors");
  }
  const auto tensor = static_cast<std::size_t>(index);
  if (tensor_ready_[tensor]) {
    const std::string& name = plan_->tensors()[tensor].name;
    return Status(Code::kInvalidArgument, "tensor '" + name + "' became ready twice in one step", {-1, name});
  }
  tensor_ready_[tensor] = true;
  ++ready_tensors_;
  std::vector<int> complete;
  for (const int position : plan_->partitions_of(index)) {
    if (--missing_[static_cast<std::size_t>(position)] == 0) {
      complete.push_back(position);
    }
  }
  return complete;
}

std::optional<int> ReadyQueue::front() const {
  if (exhausted() || missing_[next_] != 0) {
    return std::nullopt;
  }
  return static_cast<int>(next_);
}

void ReadyQueue::pop() {
  SRT_CHECK(front().has_value());
  ++next_;
}

void ReadyQueue::restart() {
  tensor_ready_.assign(tensor_ready_.size(), false);
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    missing_[i] = plan_->partitions()[i].slices.size();
  }
  ready_tensors_ = 0;
  next_ = 0;
}

}  // namespace sirtaki::scheduler
