#include "runtime/local_updates/controller/fixed_point.h"

#include <bit>

#include "runtime/base/check.h"

namespace sirtaki::local_updates {
namespace {

constexpr int kFractionBits = 16;
constexpr int kMantissaBits = 52;
constexpr std::int64_t kExponentBias = 1023;
constexpr std::int64_t kExponentMask = 2047;

// A mantissa in [2^62, 2^63) represents [1, 2). Squaring doubles the logarithm, so its next binary digit tells whether
// the square reached 2.
std::int64_t fraction_of_log2(std::uint64_t mantissa) {
  std::int64_t fraction = 0;
  for (int bit = 0; bit < kFractionBits; ++bit) {
    const auto square = static_cast<std::uint64_t>((Wide{static_cast<std::int64_t>(mantissa)} * mantissa) >> 62);
    const bool reached = square >> 63 != 0;
    fraction = 2 * fraction + (reached ? 1 : 0);
    mantissa = reached ? square >> 1 : square;
  }
  return fraction;
}

std::int64_t log2_of(std::uint64_t digits, std::int64_t exponent) {
  const int shift = std::countl_zero(digits) - 1;
  return (exponent - shift) * kOneQ16 + fraction_of_log2(digits << shift);
}

}  // namespace

std::int64_t log2_q16(double value) {
  if (value == 0) {
    return kLogOfZero;
  }
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto biased = static_cast<std::int64_t>(bits >> kMantissaBits);
  SRT_CHECK(biased < kExponentMask);
  const std::uint64_t digits = bits & ((std::uint64_t{1} << kMantissaBits) - 1);
  if (biased == 0) {
    return log2_of(digits, 62 - kMantissaBits + 1 - kExponentBias);
  }
  return log2_of(digits | std::uint64_t{1} << kMantissaBits, 62 - kMantissaBits + biased - kExponentBias);
}

std::int64_t log2_q16(std::int64_t value) {
  SRT_CHECK(value >= 1);
  return log2_of(static_cast<std::uint64_t>(value), 62);
}

std::int64_t root_of_ratio_up(Wide num, Wide den, std::int64_t most) {
  std::int64_t below = 0;  // largest value known to have a smaller square
  while (below + 1 < most) {
    const std::int64_t middle = below + (most - below) / 2;
    if (Wide{middle} * middle * den >= num) {
      most = middle;
    } else {
      below = middle;
    }
  }
  return most;
}

}  // namespace sirtaki::local_updates
