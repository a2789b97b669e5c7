// Numbers of seeds that a test tries: all, or a share under a sanitizer, which makes each one many times as long.
// Constants.
#pragma once

#include <cstdint>

namespace sirtaki::world {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kSeedShare = 10;
#else
inline constexpr std::uint64_t kSeedShare = 1;
#endif

// Returns the last seed of a test that tries 1 to `all`; at least 1.
constexpr std::uint64_t last_seed(std::uint64_t all) {
  return (all + kSeedShare - 1) / kSeedShare;
}

}  // namespace sirtaki::world
