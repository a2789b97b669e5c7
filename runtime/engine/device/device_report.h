// DeviceReport: the message in which a rank reports its NCCL to the others. All reports have one size, so receivers
// know it.
//
// docs/wire_format/gpu.md lists the bytes. Plain values; pure functions. device_transport.h evaluates the reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::engine {

struct DeviceReport {
  std::int32_t version = 0;  // version number of NCCL; 0: none
  bool failed = false;
  std::string text;  // the reason; truncated to fit

  friend bool operator==(const DeviceReport&, const DeviceReport&) = default;
};

inline constexpr std::size_t kDeviceReportBytes = 512;

std::vector<std::byte> encode_device_report(const DeviceReport& report);
// Decodes a report; kCorrupt if the encoder cannot have written it.
Result<DeviceReport> decode_device_report(ConstBytes bytes);

}  // namespace sirtaki::engine
