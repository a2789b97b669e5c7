#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/half/elements.h"
#include "kernels/kth_magnitude/kth_magnitude.h"

namespace sirtaki::kernels::ref {

KthMagnitude kth_magnitude(std::int64_t n, std::int64_t k, const std::byte* data) {
  std::vector<std::uint32_t> keys(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = magnitude_bits(canonical(Plain<float>::load(data + i * sizeof(float))));
  }
  std::sort(keys.begin(), keys.end(), std::greater<>());
  const std::uint32_t key = keys[static_cast<std::size_t>(k) - 1];
  return {key, std::find(keys.begin(), keys.end(), key) - keys.begin()};
}

}  // namespace sirtaki::kernels::ref
