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
  net::CollectiveArgs args;
  args.kind = OpKind::kBarrier;
  args.tag = stream_tag(id_, attempt_, kGatePosition, step_);
  ++in_flight_count_;
  deps_.net.start(std::move(args), [this, attempt = attempt_](const Status& status) {
    --in_flight_count_;
    // A lost peer does not void the step: others may have passed. The coordinator decides what follows.
    state_.gate_done = state_.gate_done || (status.ok() && attempt == attempt_ && phase_ == Phase::kOpen);
    answer();
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
