// Codecs that encode on a device give the bytes of the host. Kernels are fake; tests/device compares those of CUDA.
#include "compression/device_coding.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "compression/codecs/catalog.h"
#include "compression/payload_codec.h"
#include "kernels/reduce/reduce.h"
#include "runtime/base/codec_id.h"
#include "tests/unit/device/fake_device.h"

namespace sirtaki::compression {
namespace {

using Floats = std::vector<float>;
using Values = std::vector<std::int64_t>;

constexpr auto kHalf = static_cast<std::int64_t>(DType::kF16);
constexpr auto kFloat = static_cast<std::int64_t>(DType::kF32);

struct Case {
  CodecId codec;
  Values params;
};

const Case kCases[] = {
    {CodecId::kGroupTopk, {1, 64, 3, kFloat, 0, 0}},
    {CodecId::kGroupTopk, {1, 300, 7, kHalf, 0, 0}},
    {CodecId::kGroupTopk, {1, 64, 2, kFloat, 0, 0, 4, 16}},
    {CodecId::kInt8, {1, 256}},
    {CodecId::kFp8E4M3, {1, 100}},
    {CodecId::kFp8E5M2, {1, 32}},
};

std::byte* bytes(Floats& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

class DeviceCodingTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr std::int64_t kSizes[] = {1, 63, 256, 1000, 4097};

  std::unique_ptr<Coder> open(std::int64_t numel) const {
    return find_payload_codec(GetParam().codec)->open(GetParam().params, {numel, 1});
  }
  Floats draw(std::int64_t numel) {
    Floats values(static_cast<std::size_t>(numel));
    for (float& value : values) {
      value = static_cast<float>(random_() % 100003) / 77.0F - 600.0F;
    }
    return values;
  }
  DeviceQueue queue() { return {device_.kernels(), stream_.native}; }

  std::mt19937 random_{5};
  device::testing::FakeDevice device_;
  device::Stream stream_ = *device_.make_stream(device::Priority::kNormal);
};

TEST_P(DeviceCodingTest, WritesWhatTheCoderWrites) {
  for (const std::int64_t numel : kSizes) {
    const auto coder = open(numel);
    ASSERT_NE(coder->on_device(), nullptr);
    for (std::uint64_t step = 0; step < 6; ++step) {
      coder->at_step(step);
      const Piece piece{0, numel};
      Floats gradient = draw(numel);
      Floats residual = draw(numel);
      Floats left = gradient;
      std::vector<std::byte> here(coder->payload_bytes(numel));
      std::vector<std::byte> there(here.size());
      std::uint32_t not_finite = 7;
      ASSERT_TRUE(coder->on_device()
                      ->encode(queue(), piece, {bytes(left), bytes(residual), bytes(left)}, there.data(), &not_finite)
                      .ok());
      coder->encode(piece, {bytes(gradient), bytes(residual), bytes(gradient)}, here);
      EXPECT_EQ(here, there);
      EXPECT_EQ(gradient, left);
      EXPECT_EQ(not_finite, 0U);
      Floats sums[] = {Floats(left.size()), Floats(left.size())};
      const std::byte* const payloads[] = {here.data(), there.data(), here.data()};
      ASSERT_TRUE(coder->on_device()->sum(queue(), piece, {payloads, bytes(sums[0]), 3}).ok());
      coder->sum(piece, payloads, bytes(sums[1]));
      const std::byte* const total[] = {bytes(sums[1])};
      kernels::ref::average(DType::kF32, total, bytes(sums[1]), numel, 3);
      EXPECT_EQ(sums[0], sums[1]);
    }
  }
}

TEST_P(DeviceCodingTest, SaysWhatIsNotFinite) {
  const auto coder = open(1000);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Floats gradient = draw(1000);
    gradient[777] = bad;
    std::vector<std::byte> payload(coder->payload_bytes(1000));
    std::uint32_t not_finite = 0;
    ASSERT_TRUE(coder->on_device()->encode(queue(), {0, 1000}, {bytes(gradient)}, payload.data(), &not_finite).ok());
    EXPECT_EQ(not_finite, 1U);
  }
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(find_payload_codec(info.param.codec)->name()) + "_" + std::to_string(info.index);
}
INSTANTIATE_TEST_SUITE_P(Codecs, DeviceCodingTest, testing::ValuesIn(kCases), case_name);

TEST(DeviceCoding, CodecsWithoutKernelsOrWithStateOnTheHostEncodeThere) {
  const Values corrected{1, 64, 3, kFloat, params::kOne / 2, 0};
  EXPECT_EQ(find_payload_codec(CodecId::kGroupTopk)->open(corrected, {100, 1})->on_device(), nullptr);
  EXPECT_EQ(find_payload_codec(CodecId::kInt4)->open(Values{1, 256}, {100, 1})->on_device(), nullptr);
  EXPECT_EQ(find_payload_codec(CodecId::kTwobit)->open(Values{1, params::kOne, 0}, {100, 1})->on_device(), nullptr);
}

}  // namespace
}  // namespace sirtaki::compression
