// DeviceReport: what a rank tells the others about NCCL on it, as it travels: with a size that all know beforehand.
//
// docs/wire_format.md lists the bytes. Plain values; pure. Not for: what follows from the reports (device_plane.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::engine {

struct DeviceReport {
  std::int32_t version = 0;  // of NCCL, as it counts; 0: none
  bool failed = false;
  std::string text;  // why; cut to what there is room for

  friend bool operator==(const DeviceReport&, const DeviceReport&) = default;
};

inline constexpr std::size_t kDeviceReportBytes = 512;

std::vector<std::byte> encode_device_report(const DeviceReport& report);
// kCorrupt where it is not what the encoder makes of some report.
Result<DeviceReport> decode_device_report(ConstBytes bytes);

}  // namespace sirtaki::engine
