#include "runtime/local_updates/forecast/forecast.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/config/config.h"
#include "runtime/local_updates/choice.h"

namespace sirtaki::local_updates {
namespace {

constexpr std::int64_t kComputeUs = 30'000;

LocalForecast forecast_of(std::string_view interval, std::string_view codec, std::int64_t mbit,
                          std::int64_t latency_ns = 200'000) {
  engine::StreamSpec spec;
  spec.name = "model";
  spec.codec = "none";
  for (int i = 0; i < 6; ++i) {
    spec.tensors.push_back(
        {.name = "layer" + std::to_string(i), .dims = {256, 256}, .strides = {}, .dtype = DType::kF32, .device = {}});
  }
  engine::Conditions at;
  at.ranks = 4;
  at.link = {.latency_ns = latency_ns, .bytes_per_second = mbit * 125'000};
  at.forward_us = kComputeUs / 3;
  at.backward_us = kComputeUs - at.forward_us;
  auto options = local_options(interval);
  EXPECT_TRUE(options) << options.status().to_string();
  set_codec(*options, codec);
  auto found = forecast(spec, at, Config(), *options);
  EXPECT_TRUE(found) << found.status().to_string();
  return found ? *found : LocalForecast();
}

TEST(LocalForecast, AutoSendsFewerBitsOnSlowerLinks) {
  const LocalForecast fast = forecast_of("auto:compress=on", "auto", 100);
  const LocalForecast slow = forecast_of("auto:compress=on", "auto", 20);
  EXPECT_EQ(slow.interval.mode, Mode::kLocal);
  EXPECT_EQ(slow.interval.steps, 4);
  EXPECT_TRUE(slow.codec == "twobit" || slow.codec == "onebit") << slow.codec;
  EXPECT_LE(slow.step_us, kComputeUs + kComputeUs / 50) << "merges are hidden";
  EXPECT_LT(slow.sent_bytes, fast.sent_bytes);
}

TEST(LocalForecast, AutoHidesALatencyByStepsAndWaitsForTheNorms) {
  constexpr std::int64_t kLatencyUs = 50'000;
  const LocalForecast found = forecast_of("auto:compress=on", "auto", 100, kLatencyUs * 1000);
  EXPECT_EQ(found.interval.mode, Mode::kLocal);
  EXPECT_GT(found.interval.delay * kComputeUs, 2 * kLatencyUs);
  EXPECT_GT(found.interval.steps, found.interval.delay);
  EXPECT_GE(found.step_us, kComputeUs + kLatencyUs / found.interval.steps);
}

TEST(LocalForecast, AutoAveragesGradientsOnAFastLink) {
  const LocalForecast found = forecast_of("auto:compress=on", "auto", 100'000);
  EXPECT_EQ(found.interval.mode, Mode::kSync);
  EXPECT_EQ(found.step_us, found.synchronous.prediction.step_us);
}

TEST(LocalForecast, AFixedIntervalWaitsForALinkThatIsTooSlow) {
  const LocalForecast found = forecast_of("8", "int8", 5);
  EXPECT_EQ(found.interval.steps, 8);
  EXPECT_EQ(found.codec, "int8");
  EXPECT_GE(found.step_us, found.transfer_us / 8);
  EXPECT_GT(found.step_us, kComputeUs);
}

TEST(LocalForecast, AFunctionOfTheProgramIsRefused) {
  engine::StreamSpec spec;
  spec.codec = "none";
  const LocalOptions options = local_options([](const std::string&) { return std::int64_t{1}; });
  EXPECT_EQ(forecast(spec, {}, Config(), options).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace sirtaki::local_updates
