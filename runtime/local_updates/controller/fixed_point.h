// Logarithms, roots and medians with the same bits on every machine, whatever its mathematical library.
//
// Internal to runtime/local_updates/controller: norms and variances are compared as logarithms to base 2 in 1/65536.
// Pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/plan/arith.h"

namespace sirtaki::local_updates {

using scheduler::Wide;

inline constexpr std::int64_t kOneQ16 = 65536;
// Represents the logarithm of 0: below that of any number, and small enough in magnitude to be added.
inline constexpr std::int64_t kLogOfZero = std::int64_t{-1} << 40;
// Limit of the magnitude of all other logarithms of doubles and sums of a few; its square fits 64 bits.
inline constexpr std::int64_t kMostLog = std::int64_t{1} << 28;

// Returns the logarithm, rounded down. Requires a finite number >= 0. Reads its bits and depends on no rounding mode.
std::int64_t log2_q16(double value);
// Returns the logarithm, rounded down. Requires value >= 1.
std::int64_t log2_q16(std::int64_t value);

// Returns the smallest integer whose square is at least num / den, at most `most`. Requires num >= 0, den >= 1 and
// most^2 * den < 2^127.
std::int64_t root_of_ratio_up(Wide num, Wide den, std::int64_t most);

// Returns the median, or the lower of two middle values. Requires at least one value, all of them comparable.
template <class T>
T lower_median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace sirtaki::local_updates
