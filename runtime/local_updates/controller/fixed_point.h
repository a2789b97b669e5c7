// Logarithms, roots and medians that have the same bits on every machine, whatever its mathematical library rounds to.
//
// Used inside runtime/local_updates/controller only: norms and variances are compared as logarithms to base 2 in
// 1/65536. Pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/plan/arith.h"

namespace sirtaki::local_updates {

using scheduler::Wide;

inline constexpr std::int64_t kOneQ16 = 65536;
// What stands for the logarithm of 0: below that of any number, and far enough from the end to be added up.
inline constexpr std::int64_t kLogOfZero = std::int64_t{-1} << 40;
// No logarithm of another double, and no sum of a few, is farther from 0; squares of it fit 64 bits.
inline constexpr std::int64_t kMostLog = std::int64_t{1} << 28;

// Of a finite number that is not negative, rounded down. Reads its bits; no rounding of the machine's own.
std::int64_t log2_q16(double value);
// value >= 1.
std::int64_t log2_q16(std::int64_t value);

// The smallest integer whose square is at least num / den; num >= 0, den >= 1. At most `most`; most^2 * den < 2^127.
std::int64_t root_of_ratio_up(Wide num, Wide den, std::int64_t most);

// Of at least one value, all of them comparable: the lower of two in the middle.
template <class T>
T lower_median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace sirtaki::local_updates
