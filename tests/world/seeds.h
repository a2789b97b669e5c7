// The seeds and cases that a test tries: all, or a share under a sanitizer, which makes each one many times as long.
// Constants.
#pragma once

#include <cstdint>
#include <vector>

namespace sirtaki::world {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kSeedShare = 10;
#else
inline constexpr std::uint64_t kSeedShare = 1;
#endif
inline constexpr bool kSanitized = kSeedShare > 1;

// Returns the last seed of a test that tries 1 to `all`; at least 1.
constexpr std::uint64_t last_seed(std::uint64_t all) {
  return (all + kSeedShare - 1) / kSeedShare;
}

// Returns true if this build runs the `index`-th case of a list without seeds, such as every step crossed with every
// point in it. The stride is a prime that divides no length of a row, so that no column is left out of all rows.
constexpr bool has_case(std::uint64_t index) {
  return index % (kSanitized ? 11 : 1) == 0;
}

// Returns the numbers of ranks that a test of threads has: one to four, or those with the fewest and the most peers.
inline std::vector<int> thread_ranks() {
  return kSanitized ? std::vector{2, 4} : std::vector{1, 2, 3, 4};
}

}  // namespace sirtaki::world
