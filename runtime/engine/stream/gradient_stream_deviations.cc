// Deviations of a step from the plan, on which all ranks agree: missing gradients, and steps given up.
#include <algorithm>
#include <utility>

#include "runtime/engine/common/tags.h"
#include "runtime/engine/stream/gradient_stream.h"

namespace sirtaki::engine {

// ---- flags of gradients ----

bool GradientStream::flags_on() const {
  return unused_ && unused_->wanted(attempt_, step_);
}

void GradientStream::on_flags(const control::StreamFlags& message) {
  unused_->on_flags(message);
  if (phase_ != Phase::kOpen || !flags_on()) {
    return;
  }
  for (const int index : std::exchange(state_.held, {})) {
    admit(index);
  }
  if (state_.finished) {
    start_flags();
  }
  pump();
}

void GradientStream::start_flags() {
  if (state_.flags_started || phase_ != Phase::kOpen) {
    return;
  }
  state_.flags_started = true;
  auto flags = std::make_shared<std::vector<std::uint8_t>>(state_.present);
  if (joined_.joined()) {
    std::fill(flags->begin(), flags->end(), std::uint8_t{0});
  }
  ++in_flight_count_;
  deps_.net.start(flags_exchange(stream_tag(id_, attempt_, kFlagsPosition, step_), *flags),
                  [this, attempt = attempt_, flags](const Status& status) { on_flags_done(attempt, *flags, status); });
}

void GradientStream::on_flags_done(std::uint32_t attempt, const std::vector<std::uint8_t>& flags,
                                   const Status& status) {
  --in_flight_count_;
  if (attempt == attempt_ && phase_ == Phase::kOpen) {
    if (status.ok()) {
      state_.used = flags;
      state_.flags_done = true;
      publish();
    } else {
      give_up(status);
    }
  }
  answer();
}

// ---- deviations ----

void GradientStream::give_up(const Status& cause) {
  if (phase_ != Phase::kOpen) {
    return;
  }
  phase_ = Phase::kVoid;
  cancel_in_flight(cause);
  if (cause.code() != Code::kPeerLost) {
    deps_.control.send(control::StreamAbort{id_, attempt_, step_, cause});
    return;
  }
  // The control plane may know the first cause, so the report waits for it; see NamedOps::fail_later().
  deviations_.verdict = deps_.loop.after(deps_.control.cause_grace(), [this, cause] {
    deviations_.verdict = {};
    deps_.control.send(control::StreamAbort{id_, attempt_, step_, deviations_.left.ok() ? cause : deviations_.left});
  });
}

void GradientStream::cancel_in_flight(const Status& cause) {
  board_->withdraw();
  agreement_->step_void();
  paths_.current->discard_step();
  dispatcher_.reset();
  cancel_steps(step_, cause);
  // Reductions need a cancel of their own: one may be between two exchanges, neither of which is in flight.
  for (const auto& [position, reduction] : std::map(state_.reductions)) {
    reduction->cancel(cause);
  }
}

// Cancels all tags of these steps and not only the operations in flight here: another rank may have sent its part of
// any operation of this step, and of the next one if it needed nothing more of this rank to complete this one.
void GradientStream::cancel_steps(std::uint64_t from, const Status& cause) {
  for (std::uint64_t step = from; step <= step_ + 1; ++step) {
    deps_.net.cancel(stream_step_tags(id_, attempt_, step), cause);
    if (paths_.device) {
      paths_.device->cancel(stream_step_tags(id_, attempt_, step), cause);
    }
  }
  deviations_.cancelled = true;
}

// In a complete step every rank has sent to all others, after all data of cancelled tags, so the tags can be forgotten.
// That is not so if hosts sum first or data goes between GPUs: there the link drops the oldest cancelled tags.
void GradientStream::forget_cancelled() {
  const bool all_to_all = paths_.current->on_host() && deps_.net.host_groups() == nullptr;
  if (deviations_.cancelled && deps_.net.size() > 1 && !plan_->partitions().empty() && all_to_all) {
    deps_.net.forget(stream_tags(id_));
    deviations_.cancelled = false;
  }
}

void GradientStream::on_aborted(const control::StreamAborted& message) {
  unused_->on_aborted(message);
  if (phase_ == Phase::kFailed) {
    return;
  }
  deviations_.aborts.push_back(message);
  apply_aborts();
  answer();
}

void GradientStream::apply_aborts() {
  while (!deviations_.aborts.empty() && (phase_ != Phase::kOpen || step_ >= deviations_.aborts.front().step)) {
    const control::StreamAborted message = std::move(deviations_.aborts.front());
    deviations_.aborts.pop_front();
    cancel_steps(std::min(message.step, step_), message.status);
    if (phase_ == Phase::kOpen && !message.everywhere && state_.untouched()) {
      begin_attempt(message);
      open_step();
      continue;
    }
    if (phase_ == Phase::kOpen) {
      phase_ = Phase::kVoid;
      cancel_in_flight(message.status);
    }
    begin_attempt(message);
    deps_.loop.cancel(deviations_.verdict);
    deviations_.causes.push_back(message.status);  // from the coordinator, so the same on all ranks
    leave_void();
  }
}

void GradientStream::begin_attempt(const control::StreamAborted& message) {
  attempt_ = message.attempt;
  // Computed from the message alone, because this rank may have completed that step while others have not.
  trained_ += message.step;
  step_ = 0;
  agreement_->restart();
}

// Opens the next step once the coordinator has confirmed a step that the program itself gave up.
void GradientStream::leave_void() {
  if (phase_ != Phase::kAborting || deviations_.causes.empty()) {
    return;
  }
  deviations_.causes.pop_front();
  reopen();
  while (phase_ != Phase::kAborting && !waiters_.next_step.empty()) {
    Task call = std::move(waiters_.next_step.front());
    waiters_.next_step.pop_front();
    call();
  }
}

// The stream stays void if another rank has given up a step meanwhile, whose cause the program has to receive.
void GradientStream::reopen() {
  phase_ = deviations_.causes.empty() ? Phase::kOpen : Phase::kVoid;
  open_step();
}

void GradientStream::note_left(const Status& cause) {
  deviations_.left.update(cause);
  leave_gate();
}

void GradientStream::fail(const Status& cause) {
  deps_.loop.cancel(deviations_.verdict);
  deviations_.failure.update(cause);
  deviations_.last = report();
  const bool open = std::exchange(phase_, Phase::kFailed) == Phase::kOpen;
  if (open) {
    cancel_in_flight(cause);
  }
  for (Task& call : std::exchange(waiters_.next_step, {})) {
    call();
  }
  if (Task done = joined_.take_done()) {
    deps_.loop.post(std::move(done));
  }
  answer();
}

}  // namespace sirtaki::engine
