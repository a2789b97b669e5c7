// The k-th largest magnitude of an array of float32, which is the threshold that k elements reach.
//
// Used by sparse codecs. Threads: pure functions; no allocation (20 KiB of stack). Memory may be unaligned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sirtaki::kernels {

struct KthMagnitude {
  std::uint32_t key;   // its bits without the sign; 0x7FC00000 for every NaN, so larger than infinity
  std::int64_t above;  // elements with a larger key: at most k - 1
};

// Requires 1 <= k <= n < 2^32.
KthMagnitude kth_magnitude(std::int64_t n, std::int64_t k, const std::byte* data);

}  // namespace sirtaki::kernels
