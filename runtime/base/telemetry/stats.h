// Stats: named counters, gauges, moving averages and histograms of one session, read as JSON at any time.
//
// Owned by: Session, CoordinatorServer. Entries are made once at set-up and referenced from then on; updating one is a
// few instructions without a lock. Threads: any, except where an entry says one writer. Not for: decisions that must be
// exact across entries; each entry is consistent by itself only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/base/types.h"

namespace sirtaki {

// All atomics below are relaxed: a reader needs the number alone, and no other memory depends on it.

class Counter {
 public:
  void add(std::uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// A number that goes up and down, with its maximum.
class Gauge {
 public:
  void set(std::int64_t value);
  void add(std::int64_t delta);
  std::int64_t value() const { return value_.load(std::memory_order_relaxed); }
  std::int64_t max() const { return max_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
  std::atomic<std::int64_t> max_{0};
};

// Exponentially weighted moving average; the first sample is the first value. One writer.
class Ewma {
 public:
  explicit Ewma(double weight) : weight_(weight) {}  // weight of a new sample, in (0, 1]
  void add(double sample);
  double value() const { return value_.load(std::memory_order_relaxed); }  // 0 before the first sample
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  const double weight_;
  std::atomic<double> value_{0.0};
  std::atomic<std::uint64_t> count_{0};
};

// Counts of values >= 0 in buckets whose width is 1/8 of a power of two: a percentile is right to 12.5 %.
class Histogram {
 public:
  static constexpr int kSubBits = 3;
  static constexpr std::size_t kBuckets = 61U << kSubBits;  // all of [0, 2^63)

  void add(std::int64_t value);  // negative counts as 0
  void add(Duration duration) { add(static_cast<std::int64_t>(duration.count())); }

  std::uint64_t count() const;
  std::int64_t sum() const { return sum_.load(std::memory_order_relaxed); }
  std::int64_t max() const { return max_.load(std::memory_order_relaxed); }
  double mean() const;
  // Returns the value below which `fraction` (0..1) of the samples lie; exact at 1; 0 without samples.
  std::int64_t percentile(double fraction) const;

  static std::size_t bucket_of(std::int64_t value);
  static std::int64_t bucket_low(std::size_t bucket);  // smallest value of a bucket

 private:
  std::array<std::atomic<std::uint64_t>, kBuckets> buckets_{};
  std::atomic<std::int64_t> sum_{0};
  std::atomic<std::int64_t> max_{0};
};

class Stats {
 public:
  // Returns the entry of that name, made at the first call; the reference lives as long as the Stats. A name has one
  // kind.
  Counter& counter(std::string_view name);
  Gauge& gauge(std::string_view name);
  Ewma& ewma(std::string_view name, double weight = 0.1);
  Histogram& histogram(std::string_view name);

  // Returns {"name": 12, "gauge": {"value", "max"}, "average": {"value", "count"}, "histogram": {"count", "sum",
  // "mean", "p50", "p90", "p99", "max"}}, sorted by name.
  std::string to_json() const;

 private:
  struct Entry {
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Ewma> ewma;
    std::unique_ptr<Histogram> histogram;
    bool empty() const { return !counter && !gauge && !ewma && !histogram; }
  };
  mutable std::mutex mutex_;                           // entries may be made by several threads at set-up
  std::map<std::string, Entry, std::less<>> entries_;  // guarded by mutex_
};

}  // namespace sirtaki
