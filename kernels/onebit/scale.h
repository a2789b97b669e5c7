// The scale of a block of signs.
//
// Private to this folder and its tests. Threads: pure functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/magnitude/magnitude.h"

namespace sirtaki::kernels {

inline constexpr std::int8_t kOnebitNothing = -128;
inline constexpr std::int8_t kOnebitNotFinite = -127;

inline std::int8_t onebit_exponent(const Magnitude& magnitude, std::size_t elements) {
  if (!std::isfinite(magnitude.sum)) {
    return kOnebitNotFinite;
  }
  int exponent = 0;
  const double part = std::frexp(magnitude.sum / static_cast<double>(elements), &exponent);
  exponent -= part < 0.75 ? 1 : 0;
  return part == 0 || exponent < -126 ? kOnebitNothing : static_cast<std::int8_t>(std::min(exponent, 127));
}

// Returns s, the magnitude that a sign decodes to.
inline float onebit_scale(std::int8_t exponent) {
  switch (exponent) {
    case kOnebitNothing:
      return 0.0F;
    case kOnebitNotFinite:
      return std::numeric_limits<float>::quiet_NaN();
    default:
      return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  }
}

inline std::size_t onebit_blocks(std::int64_t block, std::int64_t n) {
  return static_cast<std::size_t>((n + block - 1) / block);
}

}  // namespace sirtaki::kernels
