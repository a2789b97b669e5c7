#include "runtime/local_updates/anchor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/anchor/anchor.h"
#include "kernels/outer_update/outer_update.h"
#include "kernels/reduce/reduce.h"
#include "runtime/base/check.h"
#include "runtime/base/digest.h"

namespace sirtaki::local_updates {
namespace {

constexpr double kMeanMerges = 8;

std::string two_digits(double value) {
  const std::string text = std::to_string(std::round(value * 100) / 100);
  return text.substr(0, text.find('.') + 3);
}

}  // namespace

// Both means forget alike, so their ratio needs no correction for the first merges.
void OuterTrace::add_merge(double merge_along, double merge_norm2) {
  along += (merge_along - along) / kMeanMerges;
  norm2 += (merge_norm2 - norm2) / kMeanMerges;
}

void OuterTrace::add(const OuterTrace& other) {
  along += other.along;
  norm2 += other.norm2;
}

void OuterTrace::save(WireWriter& out) const {
  out.put(along);
  out.put(norm2);
}

OuterTrace OuterTrace::load(WireReader& in) {
  OuterTrace trace;
  trace.along = in.get<double>();
  trace.norm2 = in.get<double>();
  return trace;
}

// The momentum before a merge is the sum of m^(k-1) times the mean of k merges ago, so its part along the new mean is
// c = rho / (1 - m rho).
OuterRate outer_rate(const OuterOptions& outer, const OuterTrace& trace) {
  if (!outer.on) {
    return {};
  }
  const double m = outer.momentum;
  const bool known = m > 0 && trace.norm2 > 0;
  const double least = -1 / (1 + m);
  const double most = 1 / (1 - m);
  const double c = known ? std::clamp(trace.along / trace.norm2, least, most) : 0;
  OuterRate made;
  made.rate = outer.lr * (outer.nesterov ? 1 + m + m * m * c : 1 + m * c);
  if (known) {
    made.autocorrelation = c / (1 + m * c);
  }
  return made;
}

std::string to_string(const OuterRate& rate) {
  const std::string text = "outer rate " + two_digits(rate.rate);
  return rate.autocorrelation ? text + " at autocorrelation " + two_digits(*rate.autocorrelation) : text;
}

Anchor::Anchor(std::int64_t numel, const OuterOptions& outer)
    : outer_(outer),
      values_(static_cast<std::size_t>(numel)),
      momentum_(outer.on && outer.momentum > 0 ? values_.size() : 0) {}

std::int64_t Anchor::bytes() const {
  return static_cast<std::int64_t>((values_.size() + momentum_.size()) * sizeof(float));
}

void Anchor::reset(std::span<const float> model) {
  SRT_CHECK(model.size() == values_.size());
  std::ranges::copy(model, values_.begin());
  clear_momentum();
  ++version_;
}

void Anchor::clear_momentum() {
  std::ranges::fill(momentum_, 0.0F);
  momentum_norm2_ = 0;
  trace_ = {};
}

void Anchor::repair(std::span<const float> values) {
  SRT_CHECK(values.size() == values_.size());
  std::ranges::copy(values, values_.begin());
}

Status Anchor::restore(std::span<const float> values, std::span<const float> momentum, std::uint64_t version,
                       const OuterTrace& trace) {
  if (values.size() != values_.size() || momentum.size() != momentum_.size()) {
    return corrupt("a saved anchor has " + std::to_string(values.size()) + " elements and " +
                   std::to_string(momentum.size()) + " of momentum; there are " + std::to_string(values_.size()) +
                   " and " + std::to_string(momentum_.size()));
  }
  std::ranges::copy(values, values_.begin());
  std::ranges::copy(momentum, momentum_.begin());
  momentum_norm2_ = kernels::square_sum(count_of(momentum), bytes_of(momentum), nullptr);
  trace_ = trace;
  version_ = version;
  return {};
}

double Anchor::distance2(std::span<const float> model) const {
  return kernels::square_sum(count_of(model), bytes_of(model), bytes_of(values()));
}

void Anchor::assign(std::span<float> mean, bool of_differences) {
  SRT_CHECK(mean.size() == values_.size());
  if (of_differences) {
    const std::array<const std::byte*, 2> sources = {bytes_of(values()), bytes_of(mean)};
    kernels::reduce(ReduceOp::kSum, DType::kF32, sources, bytes_of(mean), count_of(mean));
  }
  std::ranges::swap_ranges(values_, mean);
  ++version_;
}

void Anchor::advance(std::span<float> mean, bool of_differences, double mean_norm2) {
  if (!outer_.on) {
    assign(mean, of_differences);
    return;
  }
  SRT_CHECK(mean.size() == values_.size());
  std::byte* const momentum = momentum_.empty() ? nullptr : bytes_of(std::span<float>(momentum_));
  const kernels::OuterStep how{static_cast<float>(outer_.lr), static_cast<float>(outer_.momentum), outer_.nesterov,
                               of_differences};
  kernels::outer_update(how, count_of(mean), bytes_of(std::span<float>(values_)), momentum, bytes_of(mean));
  trace_merge(mean_norm2);
  ++version_;
}

// The new momentum is m v + d for the mean d, so its norm gives the product of v and d without a pass over both.
void Anchor::trace_merge(double mean_norm2) {
  if (momentum_.empty()) {
    return;
  }
  const double before = std::exchange(
      momentum_norm2_, kernels::square_sum(count_of(momentum_), bytes_of(std::span<const float>(momentum_)), nullptr));
  if (before > 0) {
    const double m = outer_.momentum;
    trace_.add_merge((momentum_norm2_ - m * m * before - mean_norm2) / (2 * m), mean_norm2);
  }
}

std::uint64_t Anchor::digest() const {
  return digest_of(std::as_bytes(values()), version_);
}

}  // namespace sirtaki::local_updates
