// Forecasts of the C interface from the view of a program, without a session.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "adapters/c/sirtaki.h"

namespace {

constexpr std::int64_t kDims[] = {256, 256};

// A model of two matrices on four ranks at 20 Mbit/s.
class ForecastJsonTest : public testing::Test {
 protected:
  ForecastJsonTest() {
    for (sirtaki_tensor& tensor : tensors_) {
      tensor.struct_size = sizeof(tensor);
      tensor.dtype = SIRTAKI_F32;
      tensor.ndim = 2;
      tensor.dims = kDims;
    }
    stream_.struct_size = sizeof(stream_);
    stream_.name = "optimizer";
    stream_.count = static_cast<std::int32_t>(tensors_.size());
    stream_.names = kNames.data();
    stream_.tensors = tensors_.data();
    stream_.reduce_op = SIRTAKI_AVERAGE;
    stream_.prescale = stream_.postscale = 1.0;
    local_.struct_size = sizeof(local_);
    local_.name = "optimizer";
    local_.interval = "8";
    local_.count = stream_.count;
    local_.names = kNames.data();
    local_.tensors = tensors_.data();
    local_.outer = SIRTAKI_OUTER_PRESET;
  }

  sirtaki_forecast_args args() const {
    sirtaki_forecast_args out{};
    out.struct_size = sizeof(out);
    out.ranks = 4;
    out.bytes_per_second = 2'500'000;
    out.latency_ns = 200'000;
    out.forward_ns = 10'000'000;
    out.backward_ns = 20'000'000;
    out.stream = &stream_;
    return out;
  }
  // Returns the text; empty after an error, of which sirtaki_last_error() tells.
  static std::string json(const std::vector<sirtaki_forecast_args>& args) {
    const char* const text = sirtaki_forecast_json(args.data(), static_cast<int>(args.size()));
    return text == nullptr ? "" : text;
  }

  static constexpr std::array<const char*, 2> kNames{"first", "last"};
  std::array<sirtaki_tensor, 2> tensors_{};
  sirtaki_stream_args stream_{};
  sirtaki_local_args local_{};
};

std::int64_t number(const std::string& json, const std::string& key) {
  const std::size_t at = json.find("\"" + key + "\":");
  return at == std::string::npos ? -1 : std::stoll(json.substr(at + key.size() + 3));
}

// A rank sends 1.5 times the 512 KiB of the gradients.
TEST_F(ForecastJsonTest, AveragedGradientsHaveATimeAndRowsOfTensors) {
  const std::string text = json({args()});
  EXPECT_EQ(number(text, "sent_bytes"), 3 * 2 * 256 * 256 * 4 / 2) << text << sirtaki_last_error();
  EXPECT_GT(number(text, "step_ns"), 30'000'000) << text;
  EXPECT_EQ(number(text, "step_ns") - number(text, "exposed_ns"), 30'000'000) << text;
  for (const char* part : {"\"tensors\":[{\"name\":\"first\"", "\"name\":\"last\"", "\"policy\":"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
  EXPECT_EQ(number(text, "transfer_ns"), -1) << text;
}

TEST_F(ForecastJsonTest, LocalUpdatesHaveAnIntervalAndATransfer) {
  sirtaki_forecast_args local = args();
  local.local = &local_;
  const std::string text = json({args(), local});
  ASSERT_NE(text, "") << sirtaki_last_error();
  const std::string second = text.substr(text.find("},{\"step_ns\"") + 2);
  EXPECT_EQ(number(second, "steps"), 8) << text;
  EXPECT_GT(number(second, "transfer_ns"), 0) << text;
  EXPECT_LT(number(second, "step_ns"), number(text, "step_ns")) << text;
  EXPECT_EQ(second.find("\"tensors\""), std::string::npos) << text;
}

TEST_F(ForecastJsonTest, TimesOfGradientsAreTaken) {
  const std::int64_t late[] = {20'000'000, 20'000'000};
  sirtaki_forecast_args timed = args();
  timed.ready_ns = late;
  const std::string text = json({args(), timed});
  ASSERT_NE(text, "") << sirtaki_last_error();
  const std::string second = text.substr(text.find("},{\"step_ns\"") + 2);
  EXPECT_GT(number(second, "step_ns"), number(text, "step_ns")) << text;
}

TEST_F(ForecastJsonTest, WrongArgumentsAreNamed) {
  sirtaki_forecast_args nothing = args();
  nothing.stream = nullptr;
  EXPECT_EQ(json({nothing}), "");
  EXPECT_NE(std::string(sirtaki_last_error()).find("tensors of a stream"), std::string::npos) << sirtaki_last_error();
  sirtaki_forecast_args many = args();
  many.ranks = 2000;
  EXPECT_EQ(json({many}), "");
  EXPECT_NE(std::string(sirtaki_last_error()).find("1024"), std::string::npos) << sirtaki_last_error();
  EXPECT_EQ(sirtaki_forecast_json(nullptr, 1), nullptr);
}

}  // namespace
