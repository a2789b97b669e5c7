// Training: a simulated training that feeds an IntervalController as an engine does, with simulated ranks and link.
//
// Used by unit tests. Fragments are sent in turn and merged after a delay, in the next round if the delay is long;
// reports are weighed by the norms of the time of sending. Norms grow with the learning rate and n^0.75, so guards
// raise no alarm unless a test injects a fault.
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

#include "runtime/local_updates/controller/interval_controller.h"

namespace sirtaki::local_updates {

inline constexpr std::int64_t kPico = kDecimalOne;

inline IntervalOptions options_of(const std::string& text) {
  auto options = parse_interval(text);
  EXPECT_TRUE(options) << options.status().to_string();
  return options ? std::move(*options) : IntervalOptions{};
}

// Growth of the norm of a difference with the steps.
enum class Growth : std::uint8_t { kMiddle, kNoise, kDrift };

class Training {
 public:
  static constexpr std::int64_t kSyncSteps = 16;  // between two decisions without merges
  static constexpr std::size_t kFragments = 4;

  explicit Training(const IntervalOptions& options, std::size_t ranks = 4)
      : controller_(IntervalController::make(options, ranks, kFragments).value()), ranks_(ranks), ways_(kFragments) {
    EXPECT_TRUE(controller_->happened(Event::kJoined));
  }
  explicit Training(const std::string& text, std::size_t ranks = 4) : Training(options_of(text), ranks) {}

  // A synchronous step takes step_us, three fifths of which hide the transfer.
  std::int64_t step_us = 30'000;
  std::int64_t local_us = 0;  // a local step with its merges; 0: step_us
  std::int64_t sync_steps = kSyncSteps;
  std::int64_t dense_us = 0;
  std::int64_t longest_permille = 250;  // part of a merge that the longest fragment takes
  std::int64_t latency_us = 0;          // besides
  std::int64_t steps_left = RoundStats::kUnknown;
  double loss = 1;
  // Learning rate of a step, counted from 1.
  std::function<double(std::int64_t)> rate = [](std::int64_t) { return 0.1; };
  Growth growth = Growth::kMiddle;
  bool weighs_late = false;  // just before the merge

  // Injected faults: changes of the reports of a fragment before they are weighed; merges to give up, by fragment and
  // step; changes of measurements; changes of statistics.
  std::function<void(std::vector<RankReport>&)> report = [](auto&) {};
  std::function<bool(int, std::int64_t)> lose = [](int, std::int64_t) { return false; };
  std::function<void(std::vector<RankRound>&)> measure = [](auto&) {};
  std::function<void(RoundStats&)> edit = [](auto&) {};

  void set_rate(double value) {
    rate = [value](std::int64_t) { return value; };
  }

  // Runs the steps of a round and returns its statistics.
  RoundStats next() {
    const Interval now = controller_->current();
    const bool local = now.mode == Mode::kLocal;
    const std::int64_t steps = local ? now.steps : sync_steps;
    merges_.clear();
    late_ = 0;
    for (std::size_t p = 0; local && p < ways_.size(); ++p) {
      plan(p, now.steps);
    }
    for (std::int64_t i = 0; i < steps; ++i) {
      ++step_;
      for (std::size_t p = 0; local && p < ways_.size(); ++p) {
        pass(p, now.delay);
      }
    }
    is_local_ = local;
    now_us_ += steps * (local && local_us > 0 ? local_us : step_us);
    return stats(local ? 0 : std::max<std::int64_t>(dense_us - step_us * 3 / 5, 0), now.encoding);
  }

  // Finishes all merges in flight, then merges the rest.
  RoundStats drain() {
    merges_.clear();
    late_ = 0;
    for (std::size_t p = 0; is_local_ && p < ways_.size(); ++p) {
      merge(p);
      if (step_ > ways_[p].since) {
        send(p, 0);
        merge(p);
      }
    }
    is_local_ = false;
    return stats(0, 0);
  }

  Decision round() {
    Decision decision = decide(next());
    if (controller_->current().mode == Mode::kDrain) {
      drained = decide(drain());
    }
    return decision;
  }
  Decision drained;  // decision of the last drain

  Decision rounds(int count) {
    Decision last;
    for (int i = 0; i < count; ++i) {
      last = round();
    }
    return last;
  }

  // Until the mode is local and H no longer grows.
  void converge() { rounds(100); }

  Decision decide(RoundStats stats) {
    edit(stats);
    auto decision = controller_->decide(stats);
    EXPECT_TRUE(decision) << decision.status().to_string();
    return decision ? *decision : Decision{};
  }

  const Interval& current() const { return controller_->current(); }
  IntervalController& controller() { return *controller_; }
  std::int64_t step() const { return step_; }
  std::size_t ranks() const { return ranks_; }
  // Returns the merges of the last round.
  const std::vector<Merge>& merges() const { return merges_; }

 private:
  // A fragment's.
  struct Way {
    std::int64_t since = 0;  // the snapshot of its last merge
    std::int64_t sent = 0;   // its last snapshot
    std::int64_t next = 0;   // its next one
    std::int64_t due = 0;    // the merge of the last one
    bool in_flight = false;
    std::vector<FragmentNorms> norms;  // one, as it was at the snapshot
    std::vector<RankReport> reports;
    std::int64_t steps = 0;
    Merge merge;
  };

  void plan(std::size_t p, std::int64_t steps) {
    Way& way = ways_[p];
    if (is_local_) {
      way.next = std::max({step_ + 1, way.sent + steps, way.in_flight ? way.due : 0});
      return;
    }
    const auto turn = static_cast<std::int64_t>(p) + 1;
    way = {};
    way.since = step_;
    way.next = step_ + std::max<std::int64_t>(steps * turn / static_cast<std::int64_t>(kFragments), 1);
  }

  void pass(std::size_t p, std::int64_t delay) {
    Way& way = ways_[p];
    if (way.in_flight && way.due == step_) {
      merge(p);
    }
    if (way.next == step_) {
      send(p, delay);
    }
    if (way.in_flight && way.due == step_) {
      merge(p);
    }
  }

  double norm_of(std::int64_t from, double* sum) const {
    double squares = 0;
    *sum = 0;
    for (std::int64_t step = from + 1; step <= step_; ++step) {
      *sum += rate(step);
      squares += rate(step) * rate(step);
    }
    switch (growth) {
      case Growth::kNoise:
        return std::sqrt(squares);
      case Growth::kDrift:
        return *sum;
      case Growth::kMiddle:
        break;
    }
    return *sum / std::pow(static_cast<double>(step_ - from), 0.25);
  }

  void send(std::size_t p, std::int64_t delay) {
    Way& way = ways_[p];
    way.norms = {controller_->norms(static_cast<int>(p))};
    way.sent = step_;
    way.due = step_ + delay;
    way.next = 0;
    way.in_flight = true;
    RankReport healthy;
    const double norm = norm_of(way.since, &healthy.lr_sum);
    healthy.norm2 = norm * norm;
    way.steps = step_ - way.since;
    way.reports.assign(ranks_, healthy);
    report(way.reports);
    if (!weighs_late) {
      weigh(p);
    }
  }

  void weigh(std::size_t p) {
    Way& way = ways_[p];
    auto merge = way.norms[0].weigh(static_cast<int>(p), way.steps, way.reports);
    ASSERT_TRUE(merge) << merge.status().to_string();
    way.merge = std::move(*merge);
  }

  // Half of the norms is common to all ranks.
  void merge(std::size_t p) {
    Way& way = ways_[p];
    if (!std::exchange(way.in_flight, false)) {
      return;
    }
    if (lose(static_cast<int>(p), step_)) {
      ++late_;
      return;
    }
    if (weighs_late) {
      weigh(p);
    }
    way.merge.mean_norm2 = variance_of(way.merge) / 2;
    way.since = way.sent;
    merges_.push_back(way.merge);
  }

  RoundStats stats(std::int64_t stall_us, std::int64_t encoding) {
    RankRound rank;
    rank.step = step_;
    rank.steps_left = steps_left < 0 ? steps_left : std::max<std::int64_t>(steps_left - step_, 0);
    rank.lr = rate(step_);
    rank.step_us = step_us;
    rank.latency_us = latency_us;
    rank.dense_us = dense_us;
    rank.encoding = encoding;
    rank.transfer_us =
        dense_us * controller_->options().link.bits_permille[static_cast<std::size_t>(encoding)] / 32'000;
    rank.longest_us = rank.transfer_us * longest_permille / 1000;
    rank.stall_us = stall_us;
    rank.loss_known = true;
    rank.loss_before = rank.loss_after = loss;
    rank.late_tags = late_;
    rank.now_us = now_us_;
    std::vector<RankRound> all(ranks_, rank);
    measure(all);
    auto stats = agree(all);
    EXPECT_TRUE(stats) << stats.status().to_string();
    if (!stats) {
      return {};
    }
    stats->merges = merges_;
    return *stats;
  }

  std::unique_ptr<IntervalController> controller_;
  std::size_t ranks_;
  std::vector<Way> ways_;
  std::vector<Merge> merges_;
  std::int64_t step_ = 0;
  std::int64_t now_us_ = 0;
  std::int64_t late_ = 0;
  bool is_local_ = false;  // the last round was
};

}  // namespace sirtaki::local_updates
