// Training: rounds of an imagined training for an IntervalController, with what its ranks and its link do to it.
//
// For: unit tests. Differences grow as their noise does, with learning rate and H^0.75, so guards see nothing unusual
// until a test says otherwise.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/interval/controller.h"

namespace sirtaki::scheduler::interval {

inline constexpr std::int64_t kPico = kDecimalOne;

inline IntervalOptions options_of(const std::string& text) {
  auto options = parse_interval(text);
  EXPECT_TRUE(options) << options.status().to_string();
  return options ? std::move(*options) : IntervalOptions{};
}

class Training {
 public:
  static constexpr std::int64_t kSyncSteps = 16;  // between two decisions without merges
  static constexpr std::int64_t kCompression = 4;

  explicit Training(const IntervalOptions& options, std::size_t ranks = 4)
      : controller_(IntervalController::make(options, ranks).value()), ranks_(ranks) {
    EXPECT_TRUE(controller_->happened(Event::kJoined));
  }
  explicit Training(const std::string& text, std::size_t ranks = 4) : Training(options_of(text), ranks) {}

  // A synchronous step takes step_us, three fifths of which hide what is on the link.
  std::int64_t step_us = 30'000;
  std::int64_t dense_us = 0;
  std::int64_t lr_pico = kPico / 10;
  std::int64_t steps_left = RoundStats::kUnknown;
  std::int64_t loss_e6 = 1'000'000;
  std::size_t fragments = 4;
  // Changes the statistics of a round before they are decided on.
  std::function<void(RoundStats&)> edit = [](RoundStats&) {};

  RoundStats stats() const {
    const Interval& now = controller_->current();
    const bool local = now.mode == Mode::kLocal;
    RoundStats stats;
    stats.step = step_ + (local ? now.steps : kSyncSteps);
    stats.steps_left = steps_left < 0 ? steps_left : std::max<std::int64_t>(steps_left - stats.step, 0);
    stats.lr_pico = lr_pico;
    stats.step_us = step_us;
    stats.dense_us = dense_us;
    stats.compressed = now.compress;
    stats.transfer_us = now.compress ? dense_us / kCompression : dense_us;
    stats.longest_us = stats.transfer_us / static_cast<std::int64_t>(fragments);
    stats.stall_us = local ? 0 : std::max<std::int64_t>(dense_us - step_us * 3 / 5, 0);
    stats.loss_known = loss_e6 != RoundStats::kUnknown;
    stats.loss_before_e6 = stats.loss_after_e6 = loss_e6;
    stats.now_us = stats.step * step_us;
    if (local) {
      const double norm = static_cast<double>(lr_pico) / kPico * std::pow(static_cast<double>(now.steps), 0.75);
      stats.ranks.assign(ranks_, RankReport{true, norm * norm, 1});
      stats.mean_norm2 = norm * norm / 2;
    }
    return stats;
  }

  Decision round() {
    RoundStats now = stats();
    edit(now);
    step_ = now.step;
    auto decision = controller_->decide(now);
    EXPECT_TRUE(decision) << decision.status().to_string();
    if (controller_->current().mode == Mode::kDrain) {
      EXPECT_TRUE(controller_->happened(Event::kDrained));
    }
    return decision ? *decision : Decision{};
  }

  Decision rounds(int count) {
    Decision last;
    for (int i = 0; i < count; ++i) {
      last = round();
    }
    return last;
  }

  // Until the mode is local and H no longer grows.
  void settle() { rounds(100); }

  const Interval& current() const { return controller_->current(); }
  IntervalController& controller() { return *controller_; }
  std::int64_t step() const { return step_; }

 private:
  std::unique_ptr<IntervalController> controller_;
  std::size_t ranks_;
  std::int64_t step_ = 0;
};

}  // namespace sirtaki::scheduler::interval
