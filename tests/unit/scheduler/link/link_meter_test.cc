#include "scheduler/link/link_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <utility>

namespace sirtaki::scheduler {
namespace {

// A link that serves partitions in order, seen by a rank that keeps some of them in flight. Other ranks may be late.
struct World {
  int ranks = 4;
  std::int64_t latency_ns = 100'000;
  double bytes_per_second = 25e6;
  int in_flight = 2;
  std::int64_t gap_ns = 0;   // between two partitions becoming ready
  std::int64_t late_ns = 0;  // largest delay of another rank
  std::int64_t smallest = 200'000;
  std::int64_t largest = 2'000'000;
  std::int64_t begin_ns = 0;
  std::int64_t exchanges = 2;
};

void run(LinkMeter& meter, const World& world, std::mt19937_64& random, int partitions) {
  const auto upto = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit + 1));
  };
  std::int64_t now = world.begin_ns;
  std::int64_t ready = now;
  std::int64_t link_free = now;
  std::deque<std::pair<std::int64_t, double>> flying;  // done, bytes on the link
  const auto land = [&] {
    now = std::max(now, flying.front().first);
    meter.finished(now, flying.front().second, world.exchanges);
    flying.pop_front();
  };
  for (int i = 0; i < partitions; ++i) {
    ready += world.gap_ns;
    while (!flying.empty() && (static_cast<int>(flying.size()) >= world.in_flight || flying.front().first <= ready)) {
      land();
    }
    now = std::max(now, ready);
    meter.started(now);
    const std::int64_t payload = world.smallest + upto(world.largest - world.smallest);
    const double bytes = 2.0 * (world.ranks - 1) / world.ranks * static_cast<double>(payload);
    link_free = std::max(link_free, now + upto(world.late_ns)) +
                static_cast<std::int64_t>(bytes / world.bytes_per_second * 1e9);
    flying.emplace_back(
        std::max(link_free + world.exchanges * world.latency_ns, flying.empty() ? 0 : flying.back().first), bytes);
  }
  while (!flying.empty()) {
    land();
  }
}

LinkReading reading_of(const World& world, std::uint64_t seed, int partitions = 100) {
  std::mt19937_64 random(seed);
  LinkMeter meter;
  run(meter, world, random, partitions);
  const auto reading = meter.read();
  EXPECT_TRUE(reading) << "seed " << seed;
  return reading.value_or(LinkReading{});
}

TEST(LinkMeter, SaysNothingAtFirst) {
  LinkMeter meter;
  EXPECT_FALSE(meter.read());
  meter.started(0);
  meter.finished(1'000'000, 1000, 2);
  EXPECT_FALSE(meter.read());
  meter.finished(2'000'000, 1000, 2);
  EXPECT_FALSE(meter.read()) << "what never started counts for nothing";
}

// A rank that is late finds the data of the others at its side of the link.
TEST(LinkMeter, DataThatWaitedForALateRankAreNoShortLatency) {
  LinkMeter meter;
  meter.set_least_latency(20'000'000);
  std::int64_t now = 0;
  for (int step = 0; step < 40; ++step) {
    for (const bool waited : {true, false}) {
      meter.started(now);
      now += waited ? 100'000 : 20'000'000 + 8'000'000;
      meter.finished(now, waited ? 30e3 : 80e3, 1);
      now += 30'000'000;
    }
  }
  const auto reading = meter.read();
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->latency_ns, 20'000'000);
  EXPECT_NEAR(static_cast<double>(reading->bytes_per_second), 10e6, 1e6);
}

// A late rank waits for less than the latency, so that its bytes seem to take less time.
TEST(LinkMeter, RandomLatenessDoesNotMakeALongLinkFast) {
  std::mt19937_64 random(1);
  LinkMeter meter;
  meter.set_least_latency(20'000'000);
  std::int64_t now = 0;
  for (int step = 0; step < 200; ++step) {
    const auto late = static_cast<std::int64_t>(random() % 4'000'000);
    meter.started(now);
    now += 20'000'000 + 6'400'000 - late;
    meter.finished(now, 80e3, 1);
    now += 30'000'000;
  }
  const auto reading = meter.read();
  ASSERT_TRUE(reading);
  EXPECT_LT(reading->bytes_per_second, 17'000'000) << "12.5 MB/s";
  EXPECT_GT(reading->bytes_per_second, 12'000'000);
}

TEST(LinkMeter, TheLatencyOfEachExchangeCountsForNoBandwidth) {
  for (const std::int64_t exchanges : {1, 2, 4}) {
    LinkMeter meter;
    meter.set_least_latency(20'000'000);
    std::int64_t now = 0;
    for (int step = 0; step < 40; ++step) {
      meter.started(now);
      now += exchanges * 20'000'000 + 8'000'000;
      meter.finished(now, 100e3, exchanges);
      now += 30'000'000;
    }
    const auto reading = meter.read();
    ASSERT_TRUE(reading);
    EXPECT_NEAR(static_cast<double>(reading->bytes_per_second), 12.5e6, 0.5e6) << exchanges;
    EXPECT_EQ(reading->latency_ns, 20'000'000) << exchanges;
  }
}

TEST(LinkMeter, FindsTheBandwidthOfABusyLink) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (const int in_flight : {2, 4, 16}) {
      const World world{.in_flight = in_flight};
      EXPECT_NEAR(static_cast<double>(reading_of(world, seed).bytes_per_second) / world.bytes_per_second, 1, 0.05)
          << "seed " << seed << ", " << in_flight << " in flight";
    }
  }
}

TEST(LinkMeter, FindsItInStepsOfAFewPartitions) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (const int partitions : {2, 3, 4}) {
      std::mt19937_64 random(seed);
      LinkMeter meter;
      World world{.in_flight = 4, .smallest = 1'000'000};
      for (int step = 0; step < 3; ++step) {
        run(meter, world, random, partitions);
        world.begin_ns += 10'000'000'000;
      }
      const auto reading = meter.read();
      ASSERT_TRUE(reading) << partitions << " partitions";
      EXPECT_NEAR(static_cast<double>(reading->bytes_per_second) / world.bytes_per_second, 1, 0.05) << "seed " << seed;
    }
  }
}

TEST(LinkMeter, LateRanksLowerItLittle) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const World world{.late_ns = 30'000'000};  // a partition takes 66 ms on average
    const double part = static_cast<double>(reading_of(world, seed).bytes_per_second) / world.bytes_per_second;
    EXPECT_GT(part, 0.75) << "seed " << seed;
    EXPECT_LT(part, 1.05) << "seed " << seed;
  }
}

TEST(LinkMeter, FindsBothFromPartitionsThatRunAlone) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const World world{.latency_ns = 2'000'000, .in_flight = 1, .exchanges = 1 + static_cast<std::int64_t>(seed % 4)};
    const LinkReading reading = reading_of(world, seed);
    EXPECT_NEAR(static_cast<double>(reading.bytes_per_second) / world.bytes_per_second, 1, 0.05) << "seed " << seed;
    EXPECT_NEAR(static_cast<double>(reading.latency_ns), 2e6, 2e5) << "seed " << seed;
  }
}

TEST(LinkMeter, TakesTheSmallestLatency) {
  const World world{.latency_ns = 500'000, .gap_ns = 200'000'000, .late_ns = 20'000'000};
  const LinkReading reading = reading_of(world, 1, 200);
  EXPECT_LT(reading.latency_ns, 4'000'000) << "late ranks add 5 ms on average to half of the round trip";
}

TEST(LinkMeter, FollowsAChange) {
  std::mt19937_64 random(3);
  LinkMeter meter;
  World world;
  run(meter, world, random, 200);
  world.bytes_per_second = 5e6;
  world.begin_ns = std::int64_t{1} << 40;
  run(meter, world, random, 200);
  EXPECT_NEAR(static_cast<double>(meter.read()->bytes_per_second) / 5e6, 1, 0.1);
}

// Compressed steps have few partitions; readings of dense ones must not stay forever.
TEST(LinkMeter, FollowsAChangeThoughStepsHaveBecomeSmall) {
  std::mt19937_64 random(4);
  LinkMeter meter;
  World world;
  run(meter, world, random, 200);
  world.smallest = world.largest = 60'000;
  for (const double rate : {5e6, 25e6}) {
    world.bytes_per_second = rate;
    for (int step = 0; step < 40; ++step) {
      world.begin_ns += std::int64_t{1} << 36;
      run(meter, world, random, 2);
    }
    EXPECT_NEAR(static_cast<double>(meter.read()->bytes_per_second) / rate, 1, 0.15);
  }
}

TEST(LinkMeter, PartitionsThatShareTheLinkDoNotMakeItFaster) {
  // Ten at once, each half done when the first one ends: the last ones end in quick succession.
  LinkMeter meter;
  std::int64_t now = 0;
  for (int step = 0; step < 6; ++step) {
    for (int i = 0; i < 10; ++i) {
      meter.started(now);
    }
    now += 180'000'000;
    for (int i = 0; i < 10; ++i) {
      now += 18'000'000;
      meter.finished(now, 900'000, 2);
    }
    now += 100'000'000;
  }
  // 9 MB in 360 ms
  EXPECT_NEAR(static_cast<double>(meter.read()->bytes_per_second), 25e6, 0.5e6);
}

TEST(LinkMeter, AStepGivenUpLeavesNoTrace) {
  LinkMeter meter;
  for (int i = 0; i < 50; ++i) {
    meter.started(i * 1'000'000);
    meter.started(i * 1'000'000);
    meter.reset();
  }
  EXPECT_FALSE(meter.read());
  meter.finished(60'000'000, 1 << 20, 2);
  EXPECT_FALSE(meter.read());
}

TEST(LinkMeter, SurvivesTimesThatCannotBe) {
  LinkMeter meter;
  for (int i = 0; i < 100; ++i) {
    meter.started(5);
    meter.started(5);
    meter.finished(5, 1 << 20, 2);
    meter.finished(5, 0, 2);
  }
  EXPECT_FALSE(meter.read());
}

}  // namespace
}  // namespace sirtaki::scheduler
