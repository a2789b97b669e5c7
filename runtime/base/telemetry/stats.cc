#include "runtime/base/telemetry/stats.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/check.h"
#include "runtime/base/json.h"

namespace sirtaki {
namespace {

void raise_to(std::atomic<std::int64_t>& max, std::int64_t value) {
  std::int64_t seen = max.load(std::memory_order_relaxed);
  while (value > seen && !max.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

void Gauge::set(std::int64_t value) {
  value_.store(value, std::memory_order_relaxed);
  raise_to(max_, value);
}

void Gauge::add(std::int64_t delta) {
  raise_to(max_, value_.fetch_add(delta, std::memory_order_relaxed) + delta);
}

void Ewma::add(double sample) {
  const double old = value_.load(std::memory_order_relaxed);
  const std::uint64_t count = count_.load(std::memory_order_relaxed);
  value_.store(count == 0 ? sample : old + weight_ * (sample - old), std::memory_order_relaxed);
  count_.store(count + 1, std::memory_order_relaxed);
}

std::size_t Histogram::bucket_of(std::int64_t value) {
  constexpr std::uint64_t kSub = 1U << kSubBits;
  const auto v = static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
  if (v < kSub) {
    return static_cast<std::size_t>(v);
  }
  const int exponent = static_cast<int>(std::bit_width(v)) - 1;
  const std::uint64_t sub = (v >> (exponent - kSubBits)) & (kSub - 1);
  return static_cast<std::size_t>(static_cast<std::uint64_t>(exponent - kSubBits + 1) * kSub + sub);
}

std::int64_t Histogram::bucket_low(std::size_t bucket) {
  constexpr std::size_t kSub = 1U << kSubBits;
  if (bucket < kSub) {
    return static_cast<std::int64_t>(bucket);
  }
  const std::size_t shift = bucket / kSub - 1;
  return static_cast<std::int64_t>((kSub + bucket % kSub) << shift);
}

void Histogram::add(std::int64_t value) {
  buckets_[bucket_of(value)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(std::max<std::int64_t>(value, 0), std::memory_order_relaxed);
  raise_to(max_, value);
}

std::uint64_t Histogram::count() const {
  std::uint64_t count = 0;
  for (const auto& bucket : buckets_) {
    count += bucket.load(std::memory_order_relaxed);
  }
  return count;
}

double Histogram::mean() const {
  const std::uint64_t n = count();
  return n == 0 ? 0.0 : static_cast<double>(sum()) / static_cast<double>(n);
}

std::int64_t Histogram::percentile(double fraction) const {
  if (fraction >= 1.0) {
    return max();
  }
  const auto wanted =
      static_cast<std::uint64_t>(std::ceil(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(count())));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += buckets_[i].load(std::memory_order_relaxed);
    if (seen >= std::max<std::uint64_t>(wanted, 1)) {
      const std::int64_t low = bucket_low(i);
      const std::int64_t width = i + 1 < kBuckets ? bucket_low(i + 1) - low : 1;
      return std::min(low + (width - 1) / 2, max());
    }
  }
  return 0;
}

Counter& Stats::counter(std::string_view name) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[std::string(name)];
  SRT_CHECK(entry.counter || entry.empty());
  if (!entry.counter) {
    entry.counter = std::make_unique<Counter>();
  }
  return *entry.counter;
}

Gauge& Stats::gauge(std::string_view name) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[std::string(name)];
  SRT_CHECK(entry.gauge || entry.empty());
  if (!entry.gauge) {
    entry.gauge = std::make_unique<Gauge>();
  }
  return *entry.gauge;
}

Ewma& Stats::ewma(std::string_view name, double weight) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[std::string(name)];
  SRT_CHECK(entry.ewma || entry.empty());
  if (!entry.ewma) {
    entry.ewma = std::make_unique<Ewma>(weight);
  }
  return *entry.ewma;
}

Histogram& Stats::histogram(std::string_view name) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[std::string(name)];
  SRT_CHECK(entry.histogram || entry.empty());
  if (!entry.histogram) {
    entry.histogram = std::make_unique<Histogram>();
  }
  return *entry.histogram;
}

std::string Stats::to_json() const {
  const std::lock_guard lock(mutex_);
  JsonWriter json;
  json.begin_object();
  for (const auto& [name, entry] : entries_) {
    json.key(name);
    if (entry.counter) {
      json.value(entry.counter->value());
      continue;
    }
    json.begin_object();
    if (entry.gauge) {
      json.key("value").value(entry.gauge->value()).key("max").value(entry.gauge->max());
    } else if (entry.ewma) {
      json.key("value").value(entry.ewma->value()).key("count").value(entry.ewma->count());
    } else {
      const Histogram& h = *entry.histogram;
      json.key("count").value(h.count()).key("sum").value(h.sum()).key("mean").value(h.mean());
      json.key("p50").value(h.percentile(0.5)).key("p90").value(h.percentile(0.9));
      json.key("p99").value(h.percentile(0.99)).key("max").value(h.max());
    }
    json.end_object();
  }
  json.end_object();
  return std::move(json).take();
}

}  // namespace sirtaki
