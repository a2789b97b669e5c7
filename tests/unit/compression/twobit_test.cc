#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/unit/compression/codec_runs.h"

namespace sirtaki::compression {
namespace {

std::vector<float> numbers(std::size_t n, float value) {
  return std::vector<float>(n, value);
}

TEST(Twobit, TakesThePowerOfTwoBelowTwiceTheMean) {
  CodecRun run("twobit", {1, params::kOne, 0}, 4);
  EXPECT_EQ(run.step({1, -3, 0.5F, 0}), (std::vector<float>{2, -2, 0, 0}));  // mean 1.125
  EXPECT_EQ(run.left, (std::vector<float>{-1, -1, 0.5F, 0}));
  EXPECT_EQ(run.step({0, 0, 0, 0}), (std::vector<float>{-1, -1, 1, 0}));  // mean 0.625

  CodecRun half("twobit", {1, params::kOne / 2, 0}, 4);
  EXPECT_EQ(half.step({1, -3, 0.5F, 0}), (std::vector<float>{1, -1, 1, 0}));
}

TEST(Twobit, TakesTheMeanOfAllOrOfEachBlock) {
  std::vector<float> gradient = numbers(4096, 0.5F);
  std::fill(gradient.begin() + 2048, gradient.end(), 3.0F);
  EXPECT_EQ(CodecRun("twobit", {1, params::kOne, 0}, 4096).step(gradient)[0], 0.0F);
  EXPECT_EQ(CodecRun("twobit", {1, params::kOne, 0}, 4096).step(gradient)[4095], 2.0F);
  EXPECT_EQ(CodecRun("twobit", {1, params::kOne, 1}, 4096).step(gradient)[0], 0.5F);
  EXPECT_EQ(CodecRun("twobit", {1, params::kOne, 1}, 4096).step(gradient)[4095], 2.0F);
  // An owner never sees the whole tensor.
  EXPECT_EQ(CodecRun("twobit", {1, params::kOne, 0}, 4096).step(gradient, false)[0], 0.5F);
}

TEST(Twobit, TakesAThresholdThatSomeElementReaches) {
  CodecRun run("twobit", {1, 3 * params::kOne, 0}, 3);
  EXPECT_EQ(run.step({1, 1.5F, -1.25F}), (std::vector<float>{1, 1, -1}));
  EXPECT_EQ(run.step({0, 0, 0}), (std::vector<float>{0, 0.5F, -0.5F}));
}

// With a mean near 1/2 the largest would be above 2^24 t.
TEST(Twobit, LetsNoElementWaitForEver) {
  constexpr std::size_t kNumel = 2048 * 3;
  std::vector<float> gradient = numbers(kNumel, 0.0F);
  gradient[5] = 0x1p10F;
  CodecRun run("twobit", {1, 1, 0}, kNumel);
  const std::vector<float> sent = run.step(gradient);
  EXPECT_EQ(sent[5], 0x1p-13F);  // 2^10 / 2^23
  EXPECT_EQ(run.left[5], 0x1p10F - 0x1p-13F);
  EXPECT_LT(run.left[5], gradient[5]);
}

TEST(Twobit, SendsNothingOfZerosAndOfNumbersTooSmallForAByte) {
  CodecRun run("twobit", {1, params::kOne, 0}, 3);
  EXPECT_EQ(run.step({0, -0.0F, 0}), numbers(3, 0.0F));
  EXPECT_EQ(run.step({0x1p-130F, -0x1p-149F, 0}), numbers(3, 0.0F));
  EXPECT_EQ(run.left, (std::vector<float>{0x1p-130F, -0x1p-149F, 0}));
}

TEST(Twobit, TakesTwoBitsAnElementAndAByteABlock) {
  const PayloadCodec& codec = *find_payload_codec("twobit");
  const Values values = {1, params::kOne, 0};
  EXPECT_EQ(codec.payload_bytes(values, {.numel = 8192}, 4096), 2U * 513U);
  EXPECT_EQ(codec.payload_bytes(values, {.numel = 8192}, 2049), 513U + 3U);
  EXPECT_EQ(codec.payload_bytes(values, {.numel = 8192}, 0), 0U);
  EXPECT_EQ(codec.stripe(values, {.numel = 1 << 20}, 4) % 2048, 0);
}

}  // namespace
}  // namespace sirtaki::compression
