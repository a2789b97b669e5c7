// The text, rank and tensor of the last failed call of a thread, and guarded(), which stops exceptions at the C
// interface.
//
// Owned by: each thread has its own. Not for: errors inside the runtime, which travel as Status.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "adapters/c/sirtaki.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace sirtaki::adapters {

// Stores a failure for sirtaki_last_error() and returns its code; success keeps the last text.
sirtaki_status report(const Status& status) noexcept;

const char* last_error_text() noexcept;
int last_error_rank() noexcept;
const char* last_error_tensor() noexcept;

// Returns the Status of the exception being handled; call it in a catch block.
Status status_of_exception() noexcept;

// Runs `body`, which returns a Status, and reports its result; an exception becomes a failure.
template <class Body>
sirtaki_status guarded(Body&& body) noexcept {
  try {
    return report(std::forward<Body>(body)());
  } catch (...) {
    return report(status_of_exception());
  }
}

}  // namespace sirtaki::adapters
