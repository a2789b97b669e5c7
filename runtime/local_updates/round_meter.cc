#include "runtime/local_updates/round_meter.h"

#include <algorithm>
#include <chrono>

#include "runtime/local_updates/reports.h"

namespace sirtaki::local_updates {
namespace {

// Length of the running mean of losses.
constexpr std::int64_t kLosses = 32;

// The median ignores the occasional other work of the program between two steps.
std::int64_t median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

RoundMeter::RoundMeter(const LocalModel& model) : times_(model.fragments.size()) {
  for (const FragmentLayout& fragment : model.fragments) {
    numel_ += fragment.numel;
    longest_numel_ = std::max(longest_numel_, fragment.numel);
  }
}

void RoundMeter::step(const LocalStep& step, std::optional<Duration> took) {
  last_ = step;
  if (step.loss) {
    losses_ = std::min(losses_ + 1, kLosses);
    loss_ += (*step.loss - loss_) / static_cast<double>(losses_);
    if (!loss_before_known_) {
      loss_before_ = loss_;
      loss_before_known_ = true;
    }
  }
  ++steps_since_report_;
  stalls_us_.push_back(micros(step.stall));
  gradients_us_ += micros(step.transfer);
  if (took) {
    steps_us_.push_back(std::max<std::int64_t>(micros(*took - step.stall), 1));
  }
}

void RoundMeter::merged(int fragment, std::int64_t transfer_us, std::int64_t encoding) {
  times_[static_cast<std::size_t>(fragment)][static_cast<std::size_t>(encoding)] = transfer_us;
  encoding_ = encoding;
}

void RoundMeter::waited(Duration wait) {
  merge_waits_us_ += micros(wait);
}

Duration RoundMeter::expected(int fragment) const {
  return std::chrono::microseconds(std::ranges::max(times_[static_cast<std::size_t>(fragment)]));
}

void RoundMeter::report_transfers(RankRound& round) const {
  round.encoding = encoding_;
  bool dense_known = true;
  for (const Times& times : times_) {
    const std::int64_t sent = without_latency(times[static_cast<std::size_t>(encoding_)], round.latency_us);
    round.transfer_us += sent;
    round.longest_us = std::max(round.longest_us, sent);
    round.dense_us += without_latency(times[0], round.latency_us);
    dense_known = dense_known && times[0] > 0;
  }
  round.dense_us = dense_known ? round.dense_us : 0;
}

RankRound RoundMeter::report(bool synchronous, std::int64_t latency_us) {
  RankRound round;
  round.latency_us = latency_us;
  round.steps_left = last_.steps_left;
  round.lr = last_.lr;
  round.step_us = steps_us_.empty() ? 0 : median(steps_us_);
  if (synchronous && !stalls_us_.empty()) {
    // In the mean of a few steps a single hiccup would dominate.
    round.stall_us = median(stalls_us_);
    const std::int64_t gradients_us = gradients_us_ / static_cast<std::int64_t>(stalls_us_.size());
    round.dense_us = round.transfer_us = without_latency(gradients_us, latency_us);
    round.longest_us = static_cast<std::int64_t>(static_cast<double>(round.dense_us) *
                                                 static_cast<double>(longest_numel_) / static_cast<double>(numel_));
  } else if (!synchronous) {
    report_transfers(round);
    round.stall_us = steps_since_report_ > 0 ? merge_waits_us_ / steps_since_report_ : 0;
  }
  merge_waits_us_ = steps_since_report_ = 0;
  round.loss_known = losses_ > 0;
  round.loss_before = loss_before_;
  round.loss_after = loss_;
  return round;
}

void RoundMeter::next_round() {
  loss_before_ = loss_;
  loss_before_known_ = losses_ > 0;
  steps_us_.clear();
  stalls_us_.clear();
  gradients_us_ = 0;
}

void RoundMeter::forget_losses() {
  loss_ = loss_before_ = 0;
  losses_ = 0;
  loss_before_known_ = false;
}

void RoundMeter::restore_losses(double loss, std::int64_t count) {
  loss_ = loss_before_ = loss;
  losses_ = count;
  loss_before_known_ = count > 0;
}

}  // namespace sirtaki::local_updates
