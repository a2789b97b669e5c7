#include "scheduler/link/link_model.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace sirtaki::scheduler {
namespace {

// Returns the median, or the upper of two middle values. Requires a list that is not empty.
double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Slope {
  double seconds_per_byte = 0;
  double weight = 0;
};

// Slopes are weighted by the difference in size: between two small transfers a slope is all noise. Returns 0 if no
// sizes differ enough.
double median_slope(std::span<const TransferSample> samples) {
  std::vector<Slope> slopes;
  double total = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto [small, large] = std::minmax(samples[i].bytes, samples[j].bytes);
      if (large - small > small / 2) {
        const auto difference = static_cast<double>(samples[i].bytes - samples[j].bytes);
        slopes.push_back({(samples[i].seconds - samples[j].seconds) / difference, std::abs(difference)});
        total += slopes.back().weight;
      }
    }
  }
  std::sort(slopes.begin(), slopes.end(),
            [](const Slope& a, const Slope& b) { return a.seconds_per_byte < b.seconds_per_byte; });
  double below = 0;
  for (const Slope& slope : slopes) {
    below += slope.weight;
    if (below >= total / 2) {
      return slope.seconds_per_byte;
    }
  }
  return 0;
}

}  // namespace

void LinkModel::add(TransferSample sample) {
  if (sample.bytes <= 0 || !std::isfinite(sample.seconds) || sample.seconds <= 0) {
    return;
  }
  window_[next_] = sample;
  next_ = (next_ + 1) % kWindow;
  count_ = std::min(count_ + 1, kWindow);
}

std::optional<LinkEstimate> LinkModel::estimate() const {
  if (count_ < kMinSamples) {
    return std::nullopt;
  }
  const std::span<const TransferSample> samples(window_.data(), count_);
  const double slope = median_slope(samples);
  std::vector<double> rests;
  for (const TransferSample& sample : samples) {
    const auto bytes = static_cast<double>(sample.bytes);
    rests.push_back(slope > 0 ? sample.seconds - slope * bytes : sample.seconds / bytes);
  }
  const double rest = median(rests);
  return slope > 0 ? LinkEstimate{std::max(0.0, rest), 1 / slope} : LinkEstimate{0, 1 / rest};
}

}  // namespace sirtaki::scheduler
