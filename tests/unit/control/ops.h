// Operations as ranks announce them, and when, for the tests of control.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/control/messages.h"

namespace sirtaki::control {

inline TimePoint at(Duration since_start) {
  return TimePoint(std::chrono::seconds(100)) + since_start;
}

inline OpMeta meta(std::vector<std::int64_t> dims, OpKind kind = OpKind::kAllreduce) {
  OpMeta m;
  m.kind = kind;
  m.dims = std::move(dims);
  return m;
}

}  // namespace sirtaki::control
