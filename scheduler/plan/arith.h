// Integer arithmetic of plans: 128-bit products, units of time, sizes of tensors and of their pieces, durations as
// text.
//
// Pure functions, internal to scheduler and to the interval controller.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/dtype.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::scheduler {

__extension__ using Wide = __int128;

inline constexpr std::int64_t kNsPerUs = 1000;
inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

// Returns a / b, rounded up, without overflow. Requires a >= 0 and b >= 1.
constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// Returns a duration in milliseconds with one decimal ("12.3"). Requires us >= 0.
inline std::string ms_text(std::int64_t us) {
  return std::to_string(us / 1000) + "." + std::to_string(us % 1000 / 100);
}

// Returns the bytes of `numel` elements of the tensor before encoding.
inline std::int64_t bytes_of(const PlannedTensor& tensor, std::int64_t numel) {
  return numel * static_cast<std::int64_t>(dtype_size(tensor.dtype));
}
inline std::int64_t bytes_of(const PlannedTensor& tensor) {
  return bytes_of(tensor, tensor.numel);
}

// Returns the bytes by which the tensor counts against the limits of a partition: its payload if it is compressed, else
// its elements.
inline std::int64_t weight_of(const PlannedTensor& tensor) {
  return tensor.decision.format().compressed() ? tensor.wire_bytes_of(tensor.numel) : bytes_of(tensor);
}

// Returns the number of elements of which every border inside the tensor is a multiple.
inline std::int64_t border_of(const PlannedTensor& tensor, std::int64_t alignment) {
  return tensor.stripe > 1 ? tensor.stripe : alignment;
}

}  // namespace sirtaki::scheduler
