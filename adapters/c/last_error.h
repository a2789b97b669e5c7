// The text, rank and tensor of the calling thread's last failed call, and the wall that no exception crosses.
//
// Owned by: each thread its own. Not for: errors inside the runtime, which travel as Status.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "adapters/c/sirtaki.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace sirtaki::adapters {

// Remembers a failure for sirtaki_last_error() and gives its number; ok leaves the last text alone.
sirtaki_status report(const Status& status) noexcept;

const char* last_error_text() noexcept;
int last_error_rank() noexcept;
const char* last_error_tensor() noexcept;

// The Status of the exception being handled.
Status status_of_exception() noexcept;

// Runs `body`, which returns a Status; an exception becomes a failure.
template <class Body>
sirtaki_status guarded(Body&& body) noexcept {
  try {
    return report(std::forward<Body>(body)());
  } catch (...) {
    return report(status_of_exception());
  }
}

}  // namespace sirtaki::adapters
