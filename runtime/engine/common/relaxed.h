// Helpers for times that threads share as relaxed atomics: each value stands alone, so no order between them is needed.
// Internal to the engine.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/base/types.h"

namespace sirtaki::engine {

inline constexpr auto kRelaxed = std::memory_order_relaxed;

inline std::int64_t ns_of(TimePoint time) {
  return time.time_since_epoch().count();
}

}  // namespace sirtaki::engine
