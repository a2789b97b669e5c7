// Codecs that encode on a device give the bytes of the host. Kernels are fake; tests/device compares those of CUDA.
#include "compression/device_coding.h"

#include <gtest/gtest.h>

#include <algorithm>
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
    {CodecId::kTwobit, {1, params::kOne, 0}},
    {CodecId::kTwobit, {1, 3 * params::kOne, 1}},
    {CodecId::kThresholdSparse, {1, params::kOne / 50, 4, kFloat, 0, 0}},
    {CodecId::kThresholdSparse, {1, params::kOne / 5, 2, kHalf, 0, 0}},
    {CodecId::kThresholdSparse, {1, params::kOne, 2, kFloat, 0, 0}},
    {CodecId::kThresholdSparse, {1, params::kOne / 100, 1000, kFloat, 0, 0, 4, params::kOne / 4}},
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

  // Encodes a whole tensor like the engine. Returns the note, which the coder knows.
  DeviceNote encode(Coder& coder, std::int64_t numel, const kernels::Feedback& arrays,
                    std::vector<std::byte>& payload) {
    DeviceCoding& coding = *coder.on_device();
    const auto room = [](std::size_t bytes) { return std::vector<std::uint64_t>(bytes / 8 + 1, ~std::uint64_t{0}); };
    auto whole = room(coding.whole_bytes());
    auto scratch = room(coding.scratch_bytes(numel, 3));
    auto* const memory = coding.whole_bytes() == 0 ? nullptr : reinterpret_cast<std::byte*>(whole.data());
    if (memory != nullptr) {
      EXPECT_TRUE(coding.begin(queue(), arrays, memory).ok());
    }
    DeviceNote note{7, {7, 7, 7}};
    payload.assign(coder.payload_bytes(numel), std::byte{7});
    const DeviceOutput out{payload.data(), &note, reinterpret_cast<std::byte*>(scratch.data()), memory};
    EXPECT_TRUE(coding.encode(queue(), {0, numel}, arrays, out).ok());
    if (note.not_finite == 0) {
      coding.encoded(note);
    }
    return note;
  }

  std::mt19937 random_{5};
  device::testing::FakeDevice device_;
  device::Stream stream_ = *device_.make_stream(device::Priority::kNormal);
};

TEST_P(DeviceCodingTest, WritesWhatTheCoderWrites) {
  for (const std::int64_t numel : kSizes) {
    const auto on_host = open(numel);
    auto on_device = open(numel);
    ASSERT_NE(on_device->on_device(), nullptr);
    for (std::uint64_t step = 0; step < 6; ++step) {
      on_host->at_step(step);
      if (step == 4) {  // goes on from a checkpoint
        const CoderState state = on_device->state();
        on_device = open(numel);
        on_device->at_step(step);
        on_device->restore(state);
      }
      on_device->at_step(step);
      const Piece piece{0, numel};
      Floats gradient = draw(numel);
      Floats residual = draw(numel);
      if (step == 3) {
        std::ranges::fill(gradient, 0.0F);
        residual = gradient;
      }
      Floats left = gradient;
      std::vector<std::byte> there;
      EXPECT_EQ(encode(*on_device, numel, {bytes(left), bytes(residual), bytes(left)}, there).not_finite, 0U);
      const kernels::Feedback arrays{bytes(gradient), bytes(residual), bytes(gradient)};
      if (on_host->wants_whole()) {
        on_host->begin(arrays);
      }
      std::vector<std::byte> here(on_host->payload_bytes(numel));
      on_host->encode(piece, arrays, here);
      EXPECT_EQ(here, there) << step;
      EXPECT_EQ(gradient, left);
      EXPECT_EQ(on_host->state().own, on_device->state().own) << step;
      Floats sums[] = {Floats(left.size()), Floats(left.size())};
      const std::byte* const payloads[] = {here.data(), there.data(), here.data()};
      std::vector<std::uint64_t> scratch(on_device->on_device()->scratch_bytes(numel, 3) / 8 + 1);
      const DeviceSum sum{payloads, bytes(sums[0]), reinterpret_cast<std::byte*>(scratch.data()), 3};
      ASSERT_TRUE(on_device->on_device()->sum(queue(), piece, sum).ok());
      on_host->sum(piece, payloads, bytes(sums[1]));
      const std::byte* const total[] = {bytes(sums[1])};
      kernels::ref::average(DType::kF32, total, bytes(sums[1]), numel, 3);
      EXPECT_EQ(sums[0], sums[1]);
    }
  }
}

TEST_P(DeviceCodingTest, SaysWhatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const auto coder = open(1000);
    Floats gradient = draw(1000);
    gradient[777] = bad;
    const CoderState before = coder->state();
    std::vector<std::byte> payload;
    EXPECT_EQ(encode(*coder, 1000, {bytes(gradient)}, payload).not_finite, 1U);
    EXPECT_EQ(coder->state().own, before.own);
  }
}

// A block that cannot carry its largest element with the threshold of the tensor has one of its own.
TEST(DeviceCoding, PiecesOfATernaryCodeHaveTheThresholdsOfTheirBlocks) {
  constexpr std::int64_t kNumel = 5000;
  constexpr std::int64_t kCut = 2048;
  Floats gradient(kNumel, 1.0F);
  gradient[kCut + 3] = 1e9F;
  const auto coder = find_payload_codec(CodecId::kTwobit)->open(Values{1, 1, 0}, {kNumel, 1});
  coder->begin({bytes(gradient)});
  device::testing::FakeDevice device;
  const device::Stream stream = *device.make_stream(device::Priority::kNormal);
  const DeviceQueue queue{device.kernels(), stream.native};
  DeviceCoding& coding = *coder->on_device();
  std::vector<std::uint64_t> memory(coding.whole_bytes() / 8 + 1);
  auto* const whole = reinterpret_cast<std::byte*>(memory.data());
  ASSERT_TRUE(coding.begin(queue, {bytes(gradient)}, whole).ok());
  for (const Piece& piece : {Piece{0, kCut}, Piece{kCut, kNumel - kCut}}) {
    const kernels::Feedback arrays{bytes(gradient) + piece.offset * static_cast<std::int64_t>(sizeof(float))};
    std::vector<std::byte> here(coder->payload_bytes(piece.numel));
    std::vector<std::byte> there(here.size());
    coder->encode(piece, arrays, here);
    DeviceNote note{};
    ASSERT_TRUE(coding.encode(queue, piece, arrays, {there.data(), &note, nullptr, whole}).ok());
    EXPECT_EQ(here, there) << piece.offset;
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
  const Values sparse{1, params::kOne / 10, 3, kFloat, params::kOne / 2, 0};
  EXPECT_EQ(find_payload_codec(CodecId::kThresholdSparse)->open(sparse, {100, 1})->on_device(), nullptr);
}

}  // namespace
}  // namespace sirtaki::compression
