#include "runtime/engine/forecast/forecast.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "runtime/base/config/config.h"

namespace sirtaki::engine {
namespace {

constexpr std::int64_t kMbit = 1'000'000 / 8;

StreamSpec matrices(const std::string& codec) {
  StreamSpec spec;
  spec.name = "model";
  spec.codec = codec;
  for (int i = 0; i < 6; ++i) {
    spec.tensors.push_back(
        {.name = "layer" + std::to_string(i), .dims = {256, 256}, .strides = {}, .dtype = DType::kF32, .device = {}});
  }
  return spec;
}

Conditions on_link(std::int64_t mbit) {
  Conditions at;
  at.ranks = 4;
  at.link = {.latency_ns = 200'000, .bytes_per_second = mbit * kMbit};
  at.forward_us = 10'000;
  at.backward_us = 20'000;
  return at;
}

StepForecast step(const std::string& codec, std::int64_t mbit) {
  auto found = forecast_step(matrices(codec), on_link(mbit), Config());
  EXPECT_TRUE(found) << found.status().to_string();
  return found ? *found : StepForecast();
}

// A rank sends 1.5 times its 1.5 MiB. Gradients appear evenly, so the link begins with the first of them.
TEST(Forecast, ADenseStepOnASlowLinkTakesTheTimeOfItsBytes) {
  const StepForecast dense = step("none", 20);
  EXPECT_EQ(dense.sent_bytes, 3 * 6 * 256 * 256 * 4 / 2);
  const std::int64_t wire_us = dense.sent_bytes * 1'000'000 / (20 * kMbit);
  EXPECT_GE(dense.prediction.step_us, 10'000 + wire_us);
  EXPECT_LE(dense.prediction.step_us, 30'000 + wire_us + wire_us / 20);
}

TEST(Forecast, AutoEndsAtTheLevelThatTheLinkNeeds) {
  const StepForecast slow = step("auto", 5);
  EXPECT_LT(slow.prediction.step_us, step("int8", 5).prediction.step_us);
  EXPECT_NE(slow.policy.find("powersgd of rank 8"), std::string::npos) << slow.policy;
  const StepForecast fast = step("auto", 100'000);
  EXPECT_EQ(fast.sent_bytes, step("none", 100'000).sent_bytes);
}

TEST(Forecast, TheOptimizerLimitsTheLevelsOfAuto) {
  EXPECT_LT(step("auto", 5).sent_bytes, step("auto:optimizer=other", 5).sent_bytes);
}

TEST(Forecast, OneRankSendsNothing) {
  Conditions alone = on_link(20);
  alone.ranks = 1;
  const auto found = forecast_step(matrices("none"), alone, Config());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->sent_bytes, 0);
}

TEST(Forecast, ATransferHasNothingToHideBehind) {
  const auto found = forecast_transfer(matrices("none"), on_link(20), Config());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->prediction.step_us, found->prediction.exposed_us);
}

TEST(Forecast, WrongConditionsAreNamed) {
  Conditions at = on_link(20);
  at.link.bytes_per_second = 0;
  EXPECT_EQ(forecast_step(matrices("none"), at, Config()).status().code(), Code::kInvalidArgument);
  at = on_link(20);
  at.ready_us = {1, 2};
  EXPECT_NE(forecast_step(matrices("none"), at, Config()).status().to_string().find("2 gradients"), std::string::npos);
  EXPECT_EQ(forecast_step(matrices("zip"), on_link(20), Config()).status().code(), Code::kInvalidArgument);
}

TEST(Forecast, CodecsAreTimed) {
  EXPECT_GT(time_codecs(4).front().encode_ps, 0);
}

}  // namespace
}  // namespace sirtaki::engine
