// borrowed_json(): JSON text that a caller of the C interface borrows until its thread asks for the next text.
//
// Owned by: each thread has its own text. Not for: errors (see last_error.h).
#pragma once

#include <string>
#include <utility>

#include "adapters/c/last_error.h"
#include "adapters/c/sirtaki.h"
#include "runtime/base/status.h"

namespace sirtaki::adapters {

// Returns the text made by `make`, which returns a Result<std::string>; nullptr after an error.
template <class Make>
const char* borrowed_json(Make&& make) noexcept {
  thread_local std::string text;  // lint: allow(global) the calling thread borrows it
  const auto status = guarded([&]() -> Status {
    SRT_ASSIGN(text, std::forward<Make>(make)());
    return {};
  });
  return status == SIRTAKI_OK ? text.c_str() : nullptr;
}

}  // namespace sirtaki::adapters
