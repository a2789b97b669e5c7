#include "runtime/engine/device/device_report.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "runtime/base/wire.h"

namespace sirtaki::engine {
namespace {

constexpr std::size_t kMostText = kDeviceReportBytes - 4 - 1 - 4;

}  // namespace

std::vector<std::byte> encode_device_report(const DeviceReport& report) {
  WireWriter out;
  out.put(report.version);
  out.put(static_cast<std::uint8_t>(report.failed ? 1 : 0));
  out.put_string(std::string_view(report.text).substr(0, kMostText));
  std::vector<std::byte> bytes = std::move(out).take();
  bytes.resize(kDeviceReportBytes);
  return bytes;
}

Result<DeviceReport> decode_device_report(ConstBytes bytes) {
  WireReader in(bytes);
  DeviceReport report;
  report.version = in.get<std::int32_t>();
  const auto failed = in.get<std::uint8_t>();
  report.failed = failed != 0;
  report.text = in.get_string();
  const bool zeros =
      std::ranges::all_of(in.get_raw(in.remaining()), [](std::byte byte) { return byte == std::byte{0}; });
  const bool can_be = report.version >= 0 && failed <= 1 && (report.failed || report.text.empty()) && zeros;
  if (bytes.size() != kDeviceReportBytes || !in.ok() || !can_be) {
    return corrupt("its report about NCCL is invalid: version " + std::to_string(report.version) + ", failed " +
                   std::to_string(failed) + ", " + std::to_string(report.text.size()) + " bytes of text, in " +
                   std::to_string(bytes.size()) + " bytes");
  }
  return report;
}

}  // namespace sirtaki::engine
