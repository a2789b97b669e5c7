#include "scheduler/link/link_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace sirtaki::scheduler {
namespace {

struct Link {
  double latency = 0;
  double bandwidth = 0;
  double seconds(std::int64_t bytes) const { return latency + static_cast<double>(bytes) / bandwidth; }
};

// 1 KiB to 4 MiB.
std::int64_t random_size(std::mt19937_64& random) {
  return std::int64_t{1024} << random() % 13;
}

TEST(LinkModel, SaysNothingBeforeItHasSamples) {
  LinkModel model;
  for (std::size_t i = 0; i + 1 < LinkModel::kMinSamples; ++i) {
    model.add({1000, 0.001});
    EXPECT_FALSE(model.estimate());
  }
  model.add({1000, 0.001});
  EXPECT_TRUE(model.estimate());
}

TEST(LinkModel, IgnoresSamplesThatCannotBe) {
  LinkModel model;
  model.add({0, 0.1});
  model.add({-5, 0.1});
  model.add({100, 0});
  model.add({100, -0.1});
  model.add({100, std::numeric_limits<double>::quiet_NaN()});
  model.add({100, std::numeric_limits<double>::infinity()});
  EXPECT_EQ(model.samples(), 0U);
}

TEST(LinkModel, FindsLatencyAndBandwidthOfAPerfectLink) {
  const Link link = {0.002, 25e6};
  LinkModel model;
  std::mt19937_64 random(1);
  for (int i = 0; i < 20; ++i) {
    const std::int64_t bytes = random_size(random);
    model.add({bytes, link.seconds(bytes)});
  }
  const auto estimate = model.estimate();
  ASSERT_TRUE(estimate);
  EXPECT_NEAR(estimate->latency_seconds, link.latency, 1e-9);
  EXPECT_NEAR(estimate->bytes_per_second, link.bandwidth, 1.0);
  EXPECT_NEAR(estimate->transfer_seconds(1 << 20), link.seconds(1 << 20), 1e-8);
}

TEST(LinkModel, HoldsAgainstNoiseAndOutliers) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Link link = {1e-4 * static_cast<double>(1 + random() % 100), 1e6 * static_cast<double>(5 + random() % 500)};
    std::uniform_real_distribution<double> noise(1.0, 1.1);
    LinkModel model;
    for (std::size_t i = 0; i < LinkModel::kWindow; ++i) {
      const std::int64_t bytes = random_size(random);
      const double pause = i % 8 == 0 ? 1.0 : 0.0;
      model.add({bytes, link.seconds(bytes) * noise(random) + pause});
    }
    const auto estimate = model.estimate();
    ASSERT_TRUE(estimate);
    EXPECT_NEAR(estimate->bytes_per_second / link.bandwidth, 1.0, 0.2);
    EXPECT_NEAR(estimate->transfer_seconds(1024) / link.seconds(1024), 1.0, 0.5);
  }
}

TEST(LinkModel, CountsAllTimeAsBandwidthWhenSizesAreAlike) {
  LinkModel model;
  for (int i = 0; i < 20; ++i) {
    model.add({1000000 + i, 0.1});
  }
  const auto estimate = model.estimate();
  ASSERT_TRUE(estimate);
  EXPECT_EQ(estimate->latency_seconds, 0);
  EXPECT_NEAR(estimate->bytes_per_second, 1e7, 1e4);
}

TEST(LinkModel, StaysPositiveWhenLargeTransfersAreFaster) {
  LinkModel model;
  for (int i = 0; i < 20; ++i) {
    model.add({1000, 0.2});
    model.add({4000, 0.1});
  }
  const auto estimate = model.estimate();
  ASSERT_TRUE(estimate);
  EXPECT_GE(estimate->latency_seconds, 0);
  EXPECT_GT(estimate->bytes_per_second, 0);
  EXPECT_TRUE(std::isfinite(estimate->bytes_per_second));
}

TEST(LinkModel, FollowsALinkThatChanges) {
  LinkModel model;
  std::mt19937_64 random(3);
  for (const Link link : {Link{0.01, 1e6}, Link{0.001, 1e8}}) {
    for (std::size_t i = 0; i < LinkModel::kWindow; ++i) {
      const std::int64_t bytes = random_size(random);
      model.add({bytes, link.seconds(bytes)});
    }
  }
  EXPECT_NEAR(model.estimate()->bytes_per_second, 1e8, 1e3);
  EXPECT_EQ(model.samples(), LinkModel::kWindow);
}

}  // namespace
}  // namespace sirtaki::scheduler
