// Waiting for results, and the end of a step.
#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/stream/gradient_stream.h"
#include "runtime/engine/stream/plan/stream_plan.h"

namespace sirtaki::engine {

void GradientStream::wait(Done done) {
  SRT_CHECK(!waiters_.step);
  if (phase_ == Phase::kOpen && !state_.finished) {
    refuse(std::move(done));
    return;
  }
  waiters_.step = std::move(done);
  state_.waited_since = deps_.loop.now();
  answer();
}

void GradientStream::wait_tensors(std::vector<int> tensors, Done done) {
  if (phase_ == Phase::kAborting) {
    waiters_.next_step.emplace_back([this, tensors = std::move(tensors), done = std::move(done)]() mutable {
      wait_tensors(std::move(tensors), std::move(done));
    });
    return;
  }
  if (phase_ == Phase::kOpen && !state_.finished) {
    refuse(std::move(done));
    return;
  }
  std::optional<TensorWaiter> before =
      std::exchange(waiters_.tensors, TensorWaiter{std::move(tensors), std::move(done)});
  if (before) {
    before->done({Code::kAborted, "stream '" + spec_.name + "': another wait for tensors took the place of this one"});
  }
  answer_tensors();
}

void GradientStream::refuse(Done done) {
  deps_.loop.post([done = std::move(done), name = spec_.name]() mutable {
    done(invalid_argument("stream '" + name + "' was waited for before its step was finished"));
  });
}

bool GradientStream::step_complete() const {
  return state_.finished && state_.held.empty() &&
         state_.partitions_done == static_cast<int>(plan_->partitions().size()) && (!flags_on() || state_.flags_done) &&
         (!state_.exchanged || state_.exchange_done);
}

bool GradientStream::holds_result(int index) const {
  return committed() && state_.missing[static_cast<std::size_t>(index)] == 0;
}

void GradientStream::record_results(const scheduler::Partition& partition) {
  for (const scheduler::Slice& slice : partition.slices) {
    const auto i = static_cast<std::size_t>(slice.tensor);
    if (--state_.missing[i] == 0 && committed()) {
      publish(slice.tensor);
    }
  }
  if (partition.position == commit_position_) {
    state_.commit_done = true;
    publish();
  }
}

// Publishes the results that were reduced before the commit.
void GradientStream::publish() {
  if (!committed()) {
    return;
  }
  for (std::size_t i = 0; i < state_.missing.size(); ++i) {
    if (state_.missing[i] == 0) {
      publish(static_cast<int>(i));
    }
  }
}

void GradientStream::publish(int index) {
  if (waiters_.result) {
    waiters_.result(index);
  }
  const auto i = static_cast<std::size_t>(index);
  const scheduler::Decision& decision = plan_->tensors()[i].decision;
  board_->publish(index, state_.mark, {state_.used[i] != 0, corrected_momentum(decision.codec, decision.params) != 0});
}

void GradientStream::answer_tensors() {
  if (!waiters_.tensors) {
    return;
  }
  Status status;
  if (phase_ == Phase::kOpen) {
    const std::vector<int>& tensors = waiters_.tensors->tensors;
    if (!std::all_of(tensors.begin(), tensors.end(), [this](int index) { return holds_result(index); })) {
      return;
    }
  } else if (in_flight_count_ != 0 || (phase_ != Phase::kFailed && deviations_.causes.empty())) {
    return;
  } else {
    status = phase_ == Phase::kFailed ? deviations_.failure : deviations_.causes.front();
  }
  Done done = std::move(waiters_.tensors->done);
  waiters_.tensors.reset();
  done(std::move(status));
}

// Answers the waiters that can be answered. Those of the step wait until no operation uses memory of the caller.
void GradientStream::answer() {
  start_gate();
  answer_tensors();
  if (in_flight_count_ != 0) {
    return;
  }
  for (Task& task : std::exchange(waiters_.released, {})) {
    task();
  }
  if (waiters_.behind_gate) {
    abort_behind_gate();
    return;
  }
  if (!waiters_.step) {
    return;
  }
  if (phase_ == Phase::kOpen && step_over()) {
    count_step();
    Done waiter = std::exchange(waiters_.step, {});
    const std::uint64_t done = step_ - 1;
    apply_aborts();
    waiter(Status());
    agreement_->consider(done);
  } else if (phase_ == Phase::kVoid && !deviations_.causes.empty()) {
    const Status cause = std::move(deviations_.causes.front());
    deviations_.causes.pop_front();
    reopen();
    Done waiter = std::exchange(waiters_.step, {});
    apply_aborts();
    waiter(cause);
  } else if (phase_ == Phase::kFailed) {
    std::exchange(waiters_.step, {})(deviations_.failure);
  }
}

// Ends the step that is complete, and opens the next one.
void GradientStream::count_step() {
  const TimePoint now = deps_.loop.now();
  if (state_.waited_since == TimePoint()) {
    state_.waited_since = now;  // nobody waits, or only since an earlier step that was given up
  }
  deps_.steps.add();
  deps_.step_time.add(now - state_.first_ready);
  deps_.exposed.add(now - state_.waited_since);
  trace_.end_step(state_.waited_since, *board_);
  if (!flags_on()) {
    unused_->completed(attempt_, step_, joined_.joined());
  }
  forget_cancelled();
  agreement_->notified(*board_, state_.waited_since, now);
  if (state_.exchanged) {
    agreement_->decide(step_, *state_.exchanged);
  }
  ++step_;
  open_step();
}

void GradientStream::release(Task task) {
  waiters_.released.push_back(std::move(task));
  answer();
}

}  // namespace sirtaki::engine
