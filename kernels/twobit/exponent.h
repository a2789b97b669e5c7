// Exponents of ternary codes that fit the magnitudes of a block or of a whole tensor.
//
// Used by codecs and by the CUDA source of this folder. Threads: pure functions.
// Method: a factor times the mean magnitude (Hylo; compression/codecs/twobit.h).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/host_device.h"

namespace sirtaki::kernels {

// Range of the exponents chosen here, which fit into a byte; a gradient of smaller numbers stays in the residual until
// it has grown.
inline constexpr int kTwobitLeastChosen = -126;
inline constexpr int kTwobitMostChosen = 127;

// Returns the exponent of the power of two at or below `value`, in the range above; of zero and NaN the least.
SIRTAKI_HOST_DEVICE inline int twobit_exponent_below(double value) {
  if (!(value > 0)) {
    return kTwobitLeastChosen;
  }
  const int exponent = static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52) - 1023;
  if (exponent < kTwobitLeastChosen) {
    return kTwobitLeastChosen;
  }
  return exponent < kTwobitMostChosen ? exponent : kTwobitMostChosen;
}

// Returns an exponent that can carry the largest element: elements of 2^24 t and above cannot be sent. If the mean is
// far below the largest element, t is raised above the value that fits the mean; otherwise the largest elements would
// never be sent.
SIRTAKI_HOST_DEVICE inline int twobit_carrying(float largest) {
  return twobit_exponent_below(static_cast<double>(largest) / 8388608.0);
}

// Returns the exponent of the power of two below twice the threshold: elements are sent from half of it on, and it is
// close to their mean if magnitudes fall off like those of gradients. It does not exceed the largest element: if all
// elements are alike, all would be sent as a value far too large.
SIRTAKI_HOST_DEVICE inline int twobit_wanted(double threshold, float largest) {
  const double twice = 2 * threshold;
  const auto most = static_cast<double>(largest);
  return twobit_exponent_below(most < twice ? most : twice);
}

// Returns the exponent for n elements, n >= 1, whose magnitudes have this sum.
SIRTAKI_HOST_DEVICE inline int twobit_wanted(double factor, double sum, std::int64_t n, float largest) {
  return twobit_wanted(factor * sum / static_cast<double>(n), largest);
}

}  // namespace sirtaki::kernels
