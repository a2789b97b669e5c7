#include "runtime/base/telemetry/stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <thread>

#include "runtime/base/check.h"
#include "tests/unit/base/json_check.h"

namespace sirtaki {
namespace {

using namespace std::chrono_literals;

TEST(Stats, EntriesAreMadeOnceAndKept) {
  Stats stats;
  Counter& sent = stats.counter("net.sent");
  sent.add();
  stats.counter("net.sent").add(9);
  EXPECT_EQ(&sent, &stats.counter("net.sent"));
  EXPECT_EQ(sent.value(), 10U);
}

TEST(Stats, NameOfAnotherKindIsABug) {
  Stats stats;
  stats.counter("x");
  EXPECT_THROW(stats.gauge("x"), BugError);
  EXPECT_THROW(stats.ewma("x"), BugError);
  EXPECT_THROW(stats.histogram("x"), BugError);
  EXPECT_NO_THROW(stats.counter("x"));
}

TEST(Stats, GaugeRemembersItsMaximum) {
  Gauge gauge;
  gauge.add(5);
  gauge.add(7);
  gauge.add(-10);
  EXPECT_EQ(gauge.value(), 2);
  EXPECT_EQ(gauge.max(), 12);
  gauge.set(3);
  EXPECT_EQ(gauge.max(), 12);
}

TEST(Stats, EwmaBeginsAtTheFirstSampleAndFollows) {
  Ewma average(0.5);
  EXPECT_EQ(average.value(), 0.0);
  average.add(8);
  EXPECT_EQ(average.value(), 8.0);
  average.add(4);
  EXPECT_EQ(average.value(), 6.0);
  EXPECT_EQ(average.count(), 2U);
}

TEST(Histogram, BucketsCoverAllValuesInOrder) {
  EXPECT_EQ(Histogram::bucket_of(-5), 0U);
  EXPECT_EQ(Histogram::bucket_of(0), 0U);
  EXPECT_EQ(Histogram::bucket_of(std::numeric_limits<std::int64_t>::max()), Histogram::kBuckets - 1);
  for (std::size_t i = 0; i + 1 < Histogram::kBuckets; ++i) {
    const std::int64_t low = Histogram::bucket_low(i);
    const std::int64_t next = Histogram::bucket_low(i + 1);
    ASSERT_LT(low, next);
    ASSERT_EQ(Histogram::bucket_of(low), i);
    ASSERT_EQ(Histogram::bucket_of(next - 1), i);
    ASSERT_LE(static_cast<double>(next - low), std::max(1.0, 0.125 * static_cast<double>(low)));
  }
}

TEST(Histogram, PercentilesAreNearTheExactOnes) {
  constexpr unsigned kSeed = 20260101;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  std::lognormal_distribution<double> distribution(10, 2);
  Histogram histogram;
  std::vector<std::int64_t> values;
  for (int i = 0; i < 20'000; ++i) {
    values.push_back(static_cast<std::int64_t>(distribution(random)));
    histogram.add(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double fraction : {0.01, 0.5, 0.9, 0.99, 0.999}) {
    const auto exact = static_cast<double>(values.at(static_cast<std::size_t>(fraction * 20'000) - 1));
    EXPECT_NEAR(static_cast<double>(histogram.percentile(fraction)), exact, 0.125 * exact + 1) << fraction;
  }
  EXPECT_EQ(histogram.percentile(1.0), values.back());
  EXPECT_EQ(histogram.max(), values.back());
  EXPECT_EQ(histogram.count(), 20'000U);
}

TEST(Histogram, EmptyAndSingleSamplesAreExact) {
  Histogram histogram;
  EXPECT_EQ(histogram.percentile(0.5), 0);
  EXPECT_EQ(histogram.mean(), 0.0);
  histogram.add(Duration(1ms));
  EXPECT_EQ(histogram.percentile(0.0), histogram.percentile(1.0));
  EXPECT_EQ(histogram.percentile(0.99), 1'000'000);
  EXPECT_EQ(histogram.sum(), 1'000'000);
}

TEST(Stats, ThreadsLoseNoCount) {
  Stats stats;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&stats] {
      Counter& counter = stats.counter("shared");
      Histogram& histogram = stats.histogram("times");
      for (int i = 0; i < 1000; ++i) {
        counter.add();
        histogram.add(std::int64_t{i});
        stats.gauge("level").add(1);
      }
    });
  }
  EXPECT_TRUE(is_valid_json(stats.to_json()));  // while the threads run
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(stats.counter("shared").value(), 4000U);
  EXPECT_EQ(stats.histogram("times").count(), 4000U);
  EXPECT_EQ(stats.gauge("level").max(), 4000);
}

TEST(Stats, JsonHasAllKinds) {
  Stats stats;
  stats.counter("a.count").add(3);
  stats.gauge("b.level").set(-2);
  stats.ewma("c.rate").add(1.5);
  stats.histogram("d.time").add(std::int64_t{7});
  const std::string json = stats.to_json();
  EXPECT_EQ(json, R"({"a.count":3,"b.level":{"value":-2,"max":0},"c.rate":{"value":1.5,"count":1},)"
                  R"("d.time":{"count":1,"sum":7,"mean":7,"p50":7,"p90":7,"p99":7,"max":7}})");
  EXPECT_TRUE(is_valid_json(json));
}

}  // namespace
}  // namespace sirtaki
