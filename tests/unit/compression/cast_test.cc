#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "compression/codecs/catalog.h"

namespace sirtaki::compression {
namespace {

template <class T>
std::vector<T> round_trip(std::string_view name, DType dtype, const std::vector<T>& values) {
  const Codec& codec = *find_codec(name);
  std::vector<std::byte> payload(codec.encoded_bytes(dtype, static_cast<std::int64_t>(values.size())));
  std::vector<T> out(values.size());
  codec.encode(dtype, std::as_bytes(std::span(values)), payload);
  EXPECT_TRUE(codec.decode(dtype, payload, std::as_writable_bytes(std::span(out))).ok());
  return out;
}

TEST(Cast, TravelsInTheHalfOfItsName) {
  EXPECT_EQ(find_codec("fp16")->wire_dtype(DType::kF32), DType::kF16);
  EXPECT_EQ(find_codec("fp16")->wire_dtype(DType::kF64), DType::kF16);
  EXPECT_EQ(find_codec("bf16")->wire_dtype(DType::kF32), DType::kBF16);
  EXPECT_EQ(find_codec("bf16")->wire_dtype(DType::kF64), DType::kBF16);
}

TEST(Cast, LeavesHalvesAndIntegersAlone) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kI64, DType::kBool}) {
    EXPECT_FALSE(find_codec("fp16")->handles(dtype));
    EXPECT_EQ(find_codec("bf16")->wire_dtype(dtype), dtype);
  }
}

TEST(Cast, RoundsToTheNearestHalf) {
  EXPECT_EQ(round_trip<float>("fp16", DType::kF32, {1.0F, 0.1F, -2049.0F, 1e-9F, 7e4F}),
            (std::vector<float>{1.0F, 0.0999755859375F, -2048.0F, 0.0F, std::numeric_limits<float>::infinity()}));
  EXPECT_EQ(round_trip<double>("bf16", DType::kF64, {1.0, 0.1, -257.0, 1e30}),
            (std::vector<double>{1.0, 0.10009765625, -256.0, 0x1.94p99}));
}

TEST(Cast, KeepsNanAndInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::string_view name : {"fp16", "bf16"}) {
    const auto out = round_trip<float>(name, DType::kF32, {std::numeric_limits<float>::quiet_NaN(), inf, -inf});
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_EQ(out[1], inf);
    EXPECT_EQ(out[2], -inf);
  }
}

}  // namespace
}  // namespace sirtaki::compression
