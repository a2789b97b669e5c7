// Steps of zeros, while this rank has no more data.
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine/stream/gradient_stream.h"

namespace sirtaki::engine {
namespace {

constexpr std::size_t kZerosAlign = 64;

}  // namespace

JoinedRank::Host GradientStream::zero_steps() {
  return {[this](std::uint32_t attempt) {
            return phase_ == Phase::kFailed || (phase_ == Phase::kOpen && attempt_ >= attempt);
          },
          [this] { submit_zeros(); }, [this] { paths_.release_zeros(); }};
}

void GradientStream::Paths::release_zeros() {
  host.release_zeros();
  if (device) {
    device->release_zeros();
  }
}

void GradientStream::contribute_zeros() {
  if (phase_ != Phase::kFailed) {
    joined_.begin();
  }
}

void GradientStream::end_joined(const control::StreamPlace& place, Task done) {
  if (phase_ == Phase::kFailed) {
    deps_.loop.post(std::move(done));
    return;
  }
  joined_.end_in(place.attempt, std::move(done));
  const Status cause(Code::kAborted, "stream '" + spec_.name + "': all ranks have joined");
  // A rank that has not begun the step has nothing to give up.
  on_aborted({id_, place.attempt, place.step, false, cause});
  // The last rank to join never contributed zeros, but it may have to learn of a step that was given up meanwhile.
  contribute_zeros();
}

void GradientStream::give_up_joined(const Status& cause, Task done) {
  if (!joined_.joined()) {
    deps_.loop.post(std::move(done));
    return;
  }
  joined_.end_in(0, std::move(done));
  give_up(cause);
  answer();
}

void GradientStream::submit_zeros() {
  std::vector<std::size_t> offsets;
  std::size_t size = 0;
  for (const scheduler::PlannedTensor& tensor : plan_->tensors()) {
    offsets.push_back(size);
    const std::size_t bytes = static_cast<std::size_t>(tensor.numel) * dtype_size(tensor.dtype);
    size += (bytes + kZerosAlign - 1) / kZerosAlign * kZerosAlign;
  }
  // Made anew for every step, because its sums are written there.
  const Result<std::byte*> zeros = paths_.current->zeros(size);
  if (!zeros) {
    return;  // the GPU is lost, and with it the job: fail() follows
  }
  const TimePoint now = deps_.loop.now();
  for (std::size_t i = 0; i < plan_->tensors().size(); ++i) {
    const scheduler::PlannedTensor& tensor = plan_->tensors()[i];
    // Zeros count as a gradient unless ranks exchange flags already: this rank has no reason to ask for an exchange.
    ready(static_cast<int>(i), {*zeros + offsets[i], tensor.numel, tensor.dtype, {}}, flags_on(), now);
  }
  finish(board_->finish(now), now);
  wait([this](const Status& /*given_up*/) { joined_.next(); });
}

}  // namespace sirtaki::engine
