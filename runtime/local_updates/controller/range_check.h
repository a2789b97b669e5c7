// Ranges of given or measured numbers, and error texts for values outside.
//
// Internal to runtime/local_updates/controller. Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace sirtaki::local_updates {

struct Range {
  const char* name;
  std::int64_t value;
  std::int64_t least;
  std::int64_t most;
};

// Returns the text for the first value out of its range ("gain is 70; it must be 1 to 64"); empty if there is none.
inline std::string out_of_range(std::initializer_list<Range> ranges) {
  for (const Range& range : ranges) {
    if (range.value < range.least || range.value > range.most) {
      return std::string(range.name) + " is " + std::to_string(range.value) + "; it must be " +
             std::to_string(range.least) + " to " + std::to_string(range.most);
    }
  }
  return {};
}

}  // namespace sirtaki::local_updates
