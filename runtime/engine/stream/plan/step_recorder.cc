#include "runtime/engine/stream/plan/step_recorder.h"

#include <algorithm>
#include <utility>

namespace sirtaki::engine {
namespace {

std::int64_t us(Duration duration) {
  return std::max<std::int64_t>(duration / std::chrono::microseconds(1), 0);
}

void add_to(std::vector<std::int64_t>& sum, const std::vector<std::int64_t>& values) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] += values[i];
  }
}

void divide(std::vector<std::int64_t>& sum, std::int64_t count) {
  for (std::int64_t& value : sum) {
    value /= count;
  }
}

}  // namespace

StepRecorder::StepRecorder(std::size_t tensors) : tensors_(tensors) {}

void StepRecorder::begin(TimePoint at) {
  open_ = true;
  first_ready_ = at;
  current_ = {};
  current_.ready_us.assign(tensors_, 0);
  current_.need_us.assign(tensors_, 0);
}

void StepRecorder::ready(int index, TimePoint at) {
  if (!open_) {
    begin(at);
  }
  current_.ready_us[static_cast<std::size_t>(index)] = us(at - first_ready_);
}

void StepRecorder::finished(TimePoint at) {
  finished_ = at;
  current_.backward_us = us(at - first_ready_);
}

// A tensor that the program did not wait for by itself was needed when it waited for all.
void StepRecorder::notified(const StreamBoard& board, TimePoint waited_since, TimePoint now) {
  const std::optional<TimePoint> before = std::exchange(last_notified_, now);
  const bool whole = std::exchange(open_, false) && before;
  if (!whole) {
    return;
  }
  const Duration slept = board.slept();
  const std::int64_t all = us(waited_since - finished_ - slept);
  for (std::size_t i = 0; i < tensors_; ++i) {
    const auto needed = board.needed(static_cast<int>(i));
    current_.need_us[i] = needed ? us(*needed) : all;
  }
  current_.exposed_us = us(slept + (now - waited_since));
  current_.step_us = us(now - *before);
  current_.forward_us =
      std::max<std::int64_t>(current_.step_us - current_.backward_us - current_.exposed_us, std::int64_t{0});
  samples_.push_back(std::move(current_));
  if (samples_.size() > kMaxSamples) {
    samples_.pop_front();
  }
}

void StepRecorder::forget() {
  open_ = false;
  samples_.clear();
}

void StepRecorder::interrupted() {
  forget();
  last_notified_.reset();
}

scheduler::StepProfile StepRecorder::take() {
  const std::deque<scheduler::StepProfile> samples = std::exchange(samples_, {});
  std::vector<std::int64_t> lengths;
  for (const scheduler::StepProfile& sample : samples) {
    lengths.push_back(sample.step_us);
  }
  std::ranges::sort(lengths);
  const std::int64_t longest = lengths.empty() ? 0 : 2 * lengths[(lengths.size() - 1) / 2];
  scheduler::StepProfile mean;
  mean.ready_us.assign(tensors_, 0);
  mean.need_us.assign(tensors_, 0);
  std::int64_t count = 0;
  for (const scheduler::StepProfile& sample : samples) {
    if (sample.step_us > longest) {
      continue;
    }
    ++count;
    add_to(mean.ready_us, sample.ready_us);
    add_to(mean.need_us, sample.need_us);
    mean.backward_us += sample.backward_us;
    mean.forward_us += sample.forward_us;
    mean.step_us += sample.step_us;
    mean.exposed_us += sample.exposed_us;
  }
  if (count > 0) {
    divide(mean.ready_us, count);
    divide(mean.need_us, count);
    mean.backward_us /= count;
    mean.forward_us /= count;
    mean.step_us /= count;
    mean.exposed_us /= count;
  }
  return mean;
}

}  // namespace sirtaki::engine
