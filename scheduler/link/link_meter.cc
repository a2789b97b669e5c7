#include "scheduler/link/link_meter.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "scheduler/plan/arith.h"

namespace sirtaki::scheduler {
namespace {

// Fewer completions, or a shorter time, depend too much on chance: two partitions may end together.
constexpr int kCompletions = 4;
// A link that is never idle is read every so many completions.
constexpr int kReadEvery = 16;
// Older readings, counted in completions, describe another period.
constexpr int kOutdated = 48;
constexpr std::int64_t kShortestWindowNs = 2'000'000;
// Times that hardly exceed the latency say nothing: a late rank may not have waited for all of it.
constexpr std::int64_t kLeastPart = 4;
constexpr std::size_t kWindows = 12;
constexpr std::size_t kMinWindows = 3;
constexpr std::size_t kSingles = 64;
// The latency of a local network, used if no partition ever ran alone.
constexpr std::int64_t kUsualLatencyNs = 100'000;
// Two threads on each host handle a message.
constexpr double kLeastLatencyNs = 20e3;
constexpr double kMostLatencyNs = 60e9;
constexpr double kMostBytesPerSecond = 1e13;

template <class T>
void push(std::deque<T>& list, T value, std::size_t most) {
  list.push_back(value);
  if (list.size() > most) {
    list.pop_front();
  }
}

double upper_quartile(const std::deque<double>& list) {
  std::vector<double> sorted(list.begin(), list.end());
  std::ranges::sort(sorted);
  return sorted[sorted.size() * 3 / 4];
}

}  // namespace

void LinkMeter::started(std::int64_t now_ns) {
  alone_ = in_flight_ == 0;
  if (alone_) {
    busy_ = {now_ns, 0};
    window_ = Window{now_ns, 0, 0, true};
  }
  started_ns_ = now_ns;
  ++in_flight_;
}

void LinkMeter::finished(std::int64_t now_ns, double bytes, std::int64_t exchanges) {
  if (in_flight_ == 0) {
    return;
  }
  --in_flight_;
  // Operations that overlap hide the latency of each other, but for one.
  const std::int64_t waits_ns = (alone_ && in_flight_ == 0 ? exchanges : 1) * least_latency_ns_;
  if (alone_ && in_flight_ == 0) {
    const TransferSample sample{static_cast<std::int64_t>(bytes),
                                static_cast<double>(now_ns - started_ns_) / kNsPerSecond};
    const std::int64_t rest_ns = now_ns - started_ns_ - waits_ns;
    if (rest_ns >= least_latency_ns_ / kLeastPart) {
      model_.add({sample.bytes, static_cast<double>(rest_ns) / kNsPerSecond});
    }
    push(singles_, Single{sample, exchanges}, kSingles);
  }
  alone_ = false;
  busy_.bytes += bytes;
  const std::int64_t busy_ns = now_ns - busy_.begin_ns - waits_ns;
  if (in_flight_ == 0 && busy_ns >= shortest_window()) {
    push(busy_rates_, busy_.bytes * kNsPerSecond / static_cast<double>(busy_ns), kWindows);
    since_busy_ = 0;
  }
  count(now_ns, bytes);
  forget_old();
}

std::int64_t LinkMeter::shortest_window() const {
  return std::max(kShortestWindowNs, least_latency_ns_ / kLeastPart);
}

void LinkMeter::forget_old() {
  if (++since_busy_ > kOutdated) {
    busy_rates_.clear();
  }
  if (++since_window_ > kOutdated && !rates_.empty()) {
    rates_.clear();
    outdated_ = true;
  }
}

// A window begins and ends with an idle link, or with a busy one at both ends: partitions in flight share the link, so
// at the end of a step some complete that were mostly sent before, faster than the link carries bytes.
void LinkMeter::count(std::int64_t now_ns, double bytes) {
  if (!window_) {
    return;
  }
  window_->bytes += bytes;
  ++window_->completions;
  const std::int64_t time = now_ns - window_->begin_ns - (window_->from_idle ? least_latency_ns_ : 0);
  const bool whole = in_flight_ == 0 && window_->from_idle && window_->completions >= kCompletions;
  const bool part = in_flight_ > 0 && window_->completions == kReadEvery;
  if ((whole || part) && time >= shortest_window()) {
    push(rates_, window_->bytes * kNsPerSecond / static_cast<double>(time), kWindows);
    since_window_ = 0;
  }
  if (in_flight_ == 0) {
    window_.reset();
  } else if (part) {
    window_ = Window{now_ns, 0, 0, false};
  }
}

void LinkMeter::reset() {
  in_flight_ = 0;
  alone_ = false;
  window_.reset();
}

std::optional<LinkReading> LinkMeter::read() const {
  const std::optional<LinkEstimate> line = model_.estimate();
  const bool was_busy = busy_rates_.size() >= kMinWindows;
  double rate = 0;
  if (rates_.size() >= kMinWindows) {
    rate = upper_quartile(rates_);
  } else if (was_busy && (outdated_ || !line)) {
    rate = upper_quartile(busy_rates_);
  } else if (line) {
    rate = line->bytes_per_second;
  }
  rate = std::min(rate, kMostBytesPerSecond);
  if (rate < 1) {
    return std::nullopt;
  }
  double latency = static_cast<double>(kUsualLatencyNs);
  if (!singles_.empty()) {
    double least = kMostLatencyNs;
    for (const auto& [sample, exchanges] : singles_) {
      const double waits = (sample.seconds - static_cast<double>(sample.bytes) / rate) * kNsPerSecond;
      least = std::min(least, waits / static_cast<double>(exchanges));
    }
    latency = std::max(least, kLeastLatencyNs);
  }
  latency = std::max(latency, static_cast<double>(least_latency_ns_));
  return LinkReading{std::llround(latency), std::llround(rate)};
}

}  // namespace sirtaki::scheduler
