// SRT_CHECK: invariants of this library. A failure throws BugError, which every thread entry and the C ABI turn into
// a Status of Code::kBug, so that the process of the user is never aborted. User input is never checked with it.
#pragma once

#include <stdexcept>
#include <string>

namespace sirtaki {

class BugError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void raise_bug(const char* file, int line, const char* expr) {
  throw BugError(std::string(file) + ":" + std::to_string(line) + ": " + expr + " does not hold");
}

}  // namespace sirtaki

#define SRT_CHECK(expr)                                \
  do {                                                 \
    if (!(expr)) {                                     \
      ::sirtaki::raise_bug(__FILE__, __LINE__, #expr); \
    }                                                  \
  } while (false)

// The first line of a method that requires the thread of its Loop.
#define SRT_IN_LOOP(loop) SRT_CHECK((loop).in_loop())
