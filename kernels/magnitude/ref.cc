#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/half/elements.h"
#include "kernels/magnitude/magnitude.h"

namespace sirtaki::kernels::ref {

Magnitude magnitude(std::int64_t n, const Feedback& arrays) {
  double sums[16] = {};
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const float a = element(arrays, i);
    sums[i % 16] += static_cast<double>(std::fabs(a));
    largest = std::max(largest, magnitude_bits(a));
  }
  double sum = 0;
  for (const double lane : sums) {
    sum += lane;
  }
  return {canonical(sum), std::bit_cast<float>(largest)};
}

}  // namespace sirtaki::kernels::ref
