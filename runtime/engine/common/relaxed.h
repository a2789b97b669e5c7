// Times as numbers that threads share without an order between them, because each stands for itself. Used inside engine
// only.
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
