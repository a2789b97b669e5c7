// Tensors in the runtime: borrowed memory and its description, without types of a framework.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/types.h"

namespace sirtaki {

// Numbers of the enums below are part of the C ABI and the wire format: append only.
enum class DeviceType : std::uint8_t { kCpu = 0, kCuda = 1 };

struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int32_t index = 0;
  bool operator==(const Device&) const = default;
};

enum class OpKind : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReduceScatter = 4,
  kBarrier = 5,
};
inline constexpr int kOpKindCount = 6;

enum class ReduceOp : std::uint8_t { kSum = 0, kAverage = 1, kMin = 2, kMax = 3, kProduct = 4, kAdasum = 5 };
inline constexpr int kReduceOpCount = 6;
// Number of operators that work element by element: all but kAdasum, which uses the angles between whole tensors.
inline constexpr int kElementwiseOpCount = 5;

std::string device_name(const Device& device);                      // "cpu", "cuda:0", ...
std::string_view op_kind_name(OpKind kind);                         // "allreduce", ...
std::string_view reduce_op_name(ReduceOp op);                       // "sum", ...
std::string dims_to_string(const std::vector<std::int64_t>& dims);  // "[64, 3, 7, 7]"

// Dense memory without holes. Elements may be in any order on which all ranks agree; strides are compared. Borrowed
// until its request completes.
struct TensorView {
  std::byte* data = nullptr;
  std::int64_t numel = 0;
  DType dtype = DType::kF32;
  Device device;

  std::size_t size_bytes() const { return static_cast<std::size_t>(numel) * dtype_size(dtype); }
  Bytes bytes() const { return {data, size_bytes()}; }
};

}  // namespace sirtaki
