#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tests/unit/compression/codec_runs.h"

namespace sirtaki::compression {
namespace {

constexpr std::size_t kNoiseNumel = 20000;
constexpr std::int64_t kPercent = 655;  // 1 % in units of 1/65536
constexpr std::int64_t kWanted = 200;

std::vector<float> noise(std::mt19937_64& random, float scale = 1.0F) {
  std::vector<float> out(kNoiseNumel);
  for (float& value : out) {
    double sum = -2;
    for (int i = 0; i < 4; ++i) {
      sum += static_cast<double>(random() >> 11) * 0x1p-53;
    }
    value = scale * static_cast<float>(sum);
  }
  return out;
}

std::uint32_t entries(const CodecRun& run) {
  std::uint32_t count = 0;
  std::memcpy(&count, run.payload.data(), sizeof(count));
  return count;
}

TEST(ThresholdSparse, BeginsWithTheExactThreshold) {
  std::mt19937_64 random(1);
  CodecRun run("threshold_sparse", {1, kPercent, 32, kF32, 0, 0}, kNoiseNumel);
  const std::vector<float> gradient = noise(random);
  const std::vector<float> sent = run.step(gradient);
  EXPECT_EQ(entries(run), kWanted);
  float least = 1e9F;
  float most = 0;
  for (std::size_t i = 0; i < kNoiseNumel; ++i) {
    (sent[i] != 0 ? least : most) =
        sent[i] != 0 ? std::min(least, std::fabs(sent[i])) : std::max(most, std::fabs(gradient[i]));
  }
  EXPECT_GT(least, most);
}

TEST(ThresholdSparse, KeepsNearItsDensityOnStationaryNoise) {
  for (const std::int64_t reestimate : {1, 32, 1000}) {
    SCOPED_TRACE("estimated every " + std::to_string(reestimate));
    std::mt19937_64 random(2);
    CodecRun run("threshold_sparse", {1, kPercent, reestimate, kF32, 0, 0}, kNoiseNumel);
    for (int step = 0; step < 64; ++step) {
      run.step(noise(random));
      EXPECT_LE(entries(run), kWanted * 5 / 4);
    }
    // While residuals grow, so do sums; after that the threshold is stable.
    double total = 0;
    for (int step = 0; step < 64; ++step) {
      run.step(noise(random));
      total += entries(run);
    }
    EXPECT_GE(total / 64, 0.67 * kWanted);
    EXPECT_LE(total / 64, 1.25 * kWanted);
  }
}

TEST(ThresholdSparse, FollowsTheScaleOfGradientsBetweenEstimates) {
  std::mt19937_64 random(3);
  CodecRun run("threshold_sparse", {0, kPercent, 1'000'000, kF32, 0, 0}, kNoiseNumel);
  std::vector<float> first = noise(random);
  run.step(first);
  // Without residual the scale is that of the gradient: a tenth of it.
  for (int step = 0; step < 40; ++step) {
    std::fill(run.left.begin(), run.left.end(), 0.0F);
    run.step(noise(random, 0.1F));
  }
  EXPECT_GE(entries(run), static_cast<std::uint32_t>(kWanted * 6 / 10));
  for (int step = 0; step < 40; ++step) {
    std::fill(run.left.begin(), run.left.end(), 0.0F);
    run.step(noise(random));
    EXPECT_LE(entries(run), static_cast<std::uint32_t>(kWanted * 5 / 4));
  }
}

TEST(ThresholdSparse, LearnsItsThresholdWhenZerosEnd) {
  std::mt19937_64 random(4);
  CodecRun run("threshold_sparse", {1, kPercent, 1000, kF32, 0, 0}, kNoiseNumel);
  EXPECT_EQ(run.step(std::vector<float>(kNoiseNumel)), std::vector<float>(kNoiseNumel));
  EXPECT_EQ(entries(run), 0U);
  run.step(noise(random));
  EXPECT_EQ(entries(run), static_cast<std::uint32_t>(kWanted));
}

TEST(ThresholdSparse, WarmsUpWithAThresholdForEachDensity) {
  std::mt19937_64 random(5);
  // 6.25 % in steps 0 to 2, 3.125 %, 1.5625 %, then 1 %.
  CodecRun run("threshold_sparse", {1, kPercent, 1000, kF32, 0, 0, 9, 4096}, kNoiseNumel);
  const std::uint32_t wanted[] = {1250, 625, 313, kWanted};
  for (std::uint64_t step = 0; step < 12; ++step) {
    run.coder().at_step(step);
    const std::vector<float> sent = run.step(noise(random));
    const std::uint32_t expected = wanted[step / 3];
    if (step % 3 == 0) {
      EXPECT_EQ(entries(run), expected) << "step " << step;
    }
    EXPECT_EQ(run.payload.size(), 4U + 10U + (5U * expected + 3U) / 4U * 6U);
  }
}

TEST(ThresholdSparse, SendsAllWhereAllAreWanted) {
  std::mt19937_64 random(6);
  CodecRun run("threshold_sparse", {1, 65536, 32, kF32, 1 << 15, 0}, kNoiseNumel);
  std::vector<float> u(kNoiseNumel);
  for (int step = 0; step < 5; ++step) {
    const std::vector<float> gradient = noise(random, step == 0 ? 1.0F : 0.001F);
    for (std::size_t i = 0; i < u.size(); ++i) {
      u[i] = 0.5F * u[i] + gradient[i];
    }
    ASSERT_EQ(run.step(gradient), u) << "step " << step;
  }
}

TEST(ThresholdSparse, HasAPayloadOfOneSize) {
  const PayloadCodec& codec = *find_payload_codec("threshold_sparse");
  const Values values = {1, kPercent, 32, kF32, 0, 0};
  // 250 entries of 6 bytes, the counts of 5 tiles, the number of entries.
  EXPECT_EQ(codec.payload_bytes(values, {.numel = kNoiseNumel}, kNoiseNumel), 4U + 10U + 250U * 6U);
  EXPECT_EQ(codec.stripe(values, {.numel = kNoiseNumel}, 4), static_cast<std::int64_t>(kNoiseNumel));
}

}  // namespace
}  // namespace sirtaki::compression
