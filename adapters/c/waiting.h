// Waits cut into slices, so that the program's interrupt function is asked ten times a second.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "adapters/c/default_session.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::adapters {

// `try_wait(Duration)` gives an optional: nothing when that time is over. A negative timeout_ms waits without limit.
// Nothing: timeout_ms is over. kAborted: the program interrupted.
template <class TryWait>
auto wait_in_slices(const Interrupt& interrupt, std::int64_t timeout_ms, TryWait try_wait)
    -> Result<decltype(try_wait(Duration{}))> {
  using Clock = std::chrono::steady_clock;
  constexpr Duration kSlice = std::chrono::milliseconds(100);
  constexpr std::int64_t kLongest = 1000LL * 60 * 60 * 24 * 365;
  const bool limited = timeout_ms >= 0;
  Duration left = limited ? Duration(std::chrono::milliseconds(std::min(timeout_ms, kLongest))) : Duration(-1);
  if (interrupt.function == nullptr) {
    return try_wait(left);
  }
  const auto end = Clock::now() + left;
  while (true) {
    const bool last = limited && left <= kSlice;
    auto outcome = try_wait(last ? std::max(left, Duration::zero()) : kSlice);
    if (outcome || last) {
      return outcome;
    }
    if (interrupt.raised()) {
      return Status(Code::kAborted, "the wait was interrupted; the operation goes on");
    }
    left = limited ? end - Clock::now() : left;
  }
}

inline Status timed_out() {
  return {Code::kTimeout, "the operation has not finished in time and goes on"};
}

}  // namespace sirtaki::adapters
