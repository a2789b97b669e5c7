// Integer arithmetic of plans: products that do not fit 64 bits, units of time, pieces, bytes of elements; durations as
// text.
//
// Used inside scheduler only. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/dtype.h"
#include "scheduler/plan/plan.h"

namespace sirtaki::scheduler {

__extension__ using Wide = __int128;

inline constexpr std::int64_t kNsPerUs = 1000;
inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

// a >= 0, b >= 1; does not overflow.
constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// "12.3", of a duration that is not negative.
inline std::string ms_text(std::int64_t us) {
  return std::to_string(us / 1000) + "." + std::to_string(us % 1000 / 100);
}

// Of `numel` elements of the tensor, before encoding.
inline std::int64_t bytes_of(const PlannedTensor& tensor, std::int64_t numel) {
  return numel * static_cast<std::int64_t>(dtype_size(tensor.dtype));
}
inline std::int64_t bytes_of(const PlannedTensor& tensor) {
  return bytes_of(tensor, tensor.numel);
}

// What the tensor counts against limits of a partition's size.
inline std::int64_t weight_of(const PlannedTensor& tensor) {
  return tensor.decision.format().compressed() ? tensor.wire_bytes_of(tensor.numel) : bytes_of(tensor);
}

// Elements; where the tensor may be cut.
inline std::int64_t border_of(const PlannedTensor& tensor, std::int64_t alignment) {
  return tensor.stripe > 1 ? tensor.stripe : alignment;
}

}  // namespace sirtaki::scheduler
