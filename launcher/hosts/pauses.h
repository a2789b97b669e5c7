// Pauses between attempts that fail again and again. Pure.
#pragma once

#include <algorithm>

#include "runtime/base/types.h"

namespace sirtaki::launcher {

// Returns the pause after one more failure than `before`: the first one, doubled after each failure up to the longest,
// which does not shorten the first.
inline Duration growing_pause(Duration first, Duration longest, int before) {
  constexpr int kMostDoublings = 16;
  return std::min(std::max(first, longest), first * (1 << std::min(before, kMostDoublings)));
}

}  // namespace sirtaki::launcher
