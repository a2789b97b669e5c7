#include "runtime/engine/device/device_report.h"

#include <gtest/gtest.h>

namespace sirtaki::engine {
namespace {

TEST(DeviceReport, RoundTrips) {
  for (const DeviceReport& report : {DeviceReport{22809, false, ""}, DeviceReport{0, true, "there is no NCCL here"},
                                     DeviceReport{22809, true, ""}}) {
    const auto bytes = encode_device_report(report);
    EXPECT_EQ(bytes.size(), kDeviceReportBytes);
    const auto decoded = decode_device_report(bytes);
    ASSERT_TRUE(decoded) << decoded.status().to_string();
    EXPECT_EQ(*decoded, report);
  }
}

TEST(DeviceReport, HasTheDocumentedBytes) {
  const auto bytes = encode_device_report({0x01020304, true, "no"});
  const std::vector<int> begin = {4, 3, 2, 1, 1, 2, 0, 0, 0, 'n', 'o', 0};
  for (std::size_t i = 0; i < begin.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(bytes[i]), begin[i]) << i;
  }
}

TEST(DeviceReport, LongTextsAreTruncated) {
  const auto decoded = decode_device_report(encode_device_report({1, true, std::string(1000, 'x')}));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->text, std::string(kDeviceReportBytes - 9, 'x'));
}

TEST(DeviceReport, RejectsDamagedBytes) {
  const auto good = encode_device_report({22809, true, "why"});
  struct Damage {
    std::size_t at;
    int value;
    const char* what;
  };
  for (const Damage& damage : {Damage{3, 0x80, "a negative version"}, Damage{4, 2, "neither failed nor not"},
                               Damage{4, 0, "a reason without a failure"}, Damage{7, 1, "text beyond the end"},
                               Damage{200, 1, "something behind the text"}}) {
    auto bytes = good;
    bytes[damage.at] = static_cast<std::byte>(damage.value);
    EXPECT_EQ(decode_device_report(bytes).status().code(), Code::kCorrupt) << damage.what;
  }
  EXPECT_EQ(decode_device_report(ConstBytes(good).first(good.size() - 1)).status().code(), Code::kCorrupt);
  EXPECT_EQ(decode_device_report({}).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace sirtaki::engine
