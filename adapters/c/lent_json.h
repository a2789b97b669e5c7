// lend_json(): text that the C interface lends to the calling thread until it asks for the next.
//
// Owned by: each thread its own. Not for: errors (last_error.h).
#pragma once

#include <string>
#include <utility>

#include "adapters/c/last_error.h"
#include "adapters/c/sirtaki.h"
#include "runtime/base/status.h"

namespace sirtaki::adapters {

// `make` returns a Result<std::string>; nullptr after an error.
template <class Make>
const char* lend_json(Make&& make) noexcept {
  thread_local std::string text;  // lint: allow(global) the C interface lends it to the calling thread
  const auto status = guarded([&]() -> Status {
    SRT_ASSIGN(text, std::forward<Make>(make)());
    return {};
  });
  return status == SIRTAKI_OK ? text.c_str() : nullptr;
}

}  // namespace sirtaki::adapters
