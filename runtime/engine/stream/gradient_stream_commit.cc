// The commit gate at the end of a step, and the position of this rank.
#include <utility>

#include "runtime/engine/common/tags.h"
#include "runtime/engine/stream/gradient_stream.h"

namespace sirtaki::engine {

void GradientStream::start_gate() {
  if (!traits_.options.commit_gate || state_.gate_started || phase_ != Phase::kOpen || !step_complete()) {
    return;
  }
  state_.gate_started = true;
  if (deps_.net.size() == 1) {
    state_.gate_done = true;
    return;
  }
  state_.gate_since = deps_.loop.now();
  net::CollectiveArgs args;
  args.kind = OpKind::kBarrier;
  args.tag = stream_tag(id_, attempt_, kGatePosition, step_);
  ++in_flight_count_;
  deps_.net.start(std::move(args), [this, attempt = attempt_](const Status& status) {
    --in_flight_count_;
    if (attempt == attempt_ && phase_ == Phase::kOpen) {
      // A lost peer does not void the step: others may have passed. The coordinator decides what follows.
      state_.gate_done = status.ok();
      state_.gate_failed = !status.ok();
      if (state_.gate_done) {
        deps_.gate->add(deps_.loop.now() - state_.gate_since);
      }
      leave_gate();
    }
    answer();
  });
}

// Gives up a step whose gate has failed because a rank has left in order: no loss will end it.
void GradientStream::leave_gate() {
  if (state_.gate_failed && !deviations_.left.ok() && phase_ == Phase::kOpen) {
    phase_ = Phase::kVoid;
    cancel_in_flight(deviations_.left);
    deps_.control.send(control::StreamAbort{id_, attempt_, step_, deviations_.left});
  }
}

// A rank in the gate has spoken for its step, which others may have passed. So its change of mind concerns the next
// one, as does a wait of the program that has not ended yet: the program takes this step for given up.
void GradientStream::abort_behind_gate() {
  if (phase_ == Phase::kOpen && !step_over()) {
    return;
  }
  Abort pending = *std::exchange(waiters_.behind_gate, std::nullopt);
  if (phase_ == Phase::kOpen) {
    const std::uint64_t done = step_;
    count_step();
    apply_aborts();
    agreement_->consider(done);
  }
  abort(std::move(pending.cause), [all = std::move(pending.released)]() mutable {
    for (Task& released : all) {
      released();
    }
  });
}

control::StreamReport GradientStream::report() const {
  using control::StepState;
  if (deviations_.last) {
    return *deviations_.last;
  }
  StepState state = StepState::kIdle;
  if (phase_ == Phase::kOpen && state_.gate_started) {
    state = state_.gate_done ? StepState::kPassed : StepState::kComplete;
  } else if (phase_ == Phase::kVoid || (phase_ == Phase::kOpen && !state_.untouched())) {
    state = StepState::kWorking;
  }
  return {id_, attempt_, trained_ + step_, state};
}

}  // namespace sirtaki::engine
