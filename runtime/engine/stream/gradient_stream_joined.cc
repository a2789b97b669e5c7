// A rank without more data takes part in the others' steps: a program of zeros that runs on the loop.
#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/stream/gradient_stream.h"

namespace sirtaki::engine {
namespace {

constexpr std::size_t kAlign = 64;

}  // namespace

void GradientStream::stand_in() {
  if (phase_ == Phase::kFailed || standing_in_) {
    return;
  }
  standing_in_ = true;
  next_zeros();
}

void GradientStream::end_stand_in(const control::StreamPlace& place, Task done) {
  if (phase_ == Phase::kFailed) {
    deps_.loop.post(std::move(done));
    return;
  }
  stand_in_until_ = place.attempt;
  stood_in_ = std::move(done);
  const Status cause(Code::kAborted, "stream '" + spec_.name + "': all ranks have joined");
  // A rank that has not begun the step has nothing to give up.
  on_aborted({id_, place.attempt, place.step, false, cause});
  // The last to join never stood in; but it may have to take notice of a step that was given up meanwhile.
  stand_in();
}

void GradientStream::give_up_stand_in(const Status& cause, Task done) {
  if (!standing_in_) {
    deps_.loop.post(std::move(done));
    return;
  }
  stand_in_until_ = 0;
  stood_in_ = std::move(done);
  give_up(cause);
  answer();
}

// Never inside a callback of the step before, whose memory is still being looked at.
void GradientStream::next_zeros() {
  zeros_timer_ = deps_.loop.after(Duration(0), [this] {
    zeros_timer_ = {};
    submit_zeros();
  });
}

void GradientStream::submit_zeros() {
  if (held_up_) {
    return;
  }
  if (phase_ == Phase::kFailed || (phase_ == Phase::kOpen && attempt_ >= stand_in_until_)) {
    standing_in_ = false;
    stand_in_until_ = kNever;
    host_path_.zeros_over();
    if (device_path_) {
      device_path_->zeros_over();
    }
    if (stood_in_) {
      std::exchange(stood_in_, {})();
    }
    return;
  }
  const Result<std::byte*> zeros = make_zeros();
  if (!zeros) {
    return;  // the GPU is lost, and with it the job, of which the stream hears
  }
  const TimePoint now = deps_.loop.now();
  for (std::size_t i = 0; i < plan_->tensors().size(); ++i) {
    const scheduler::PlannedTensor& tensor = plan_->tensors()[i];
    // Zeros are sent as a gradient unless some rank tells absent ones apart: this rank has no reason to ask for that.
    ready(static_cast<int>(i), {*zeros + zeros_at_[i], tensor.numel, tensor.dtype, {}}, flags_on(), now);
  }
  finish(board_->finish(now), now);
  wait([this](const Status& /*given_up*/) { next_zeros(); });
}

// Anew for every step, since its sums are written there.
Result<std::byte*> GradientStream::make_zeros() {
  std::size_t size = 0;
  zeros_at_.clear();
  for (const scheduler::PlannedTensor& tensor : plan_->tensors()) {
    zeros_at_.push_back(size);
    const std::size_t bytes = static_cast<std::size_t>(tensor.numel) * dtype_size(tensor.dtype);
    size += (bytes + kAlign - 1) / kAlign * kAlign;
  }
  return dense_->zeros(size);
}

}  // namespace sirtaki::engine
