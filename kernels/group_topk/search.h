// Search for the largest keys of a group: counts the keys that reach a probe, without sorting.
//
// Used by CUDA kernels, which hold the keys in registers and do the counting. Threads: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sirtaki::kernels {

// Selects the keys above `key`, and the first `equal` of those that equal it.
struct TopkLimit {
  std::uint32_t key;
  std::int32_t equal;
};

// Bounds known before the search.
struct TopkBracket {
  std::uint32_t low;      // at least `keep` keys reach it
  std::uint32_t high;     // no key reaches it
  std::int32_t from_low;  // number of keys that reach `low`; 0: unknown
  std::uint32_t guess;    // first probe, if it lies between the two
};

// Returns the limit that selects `keep` keys. reach(probe), probe >= 1, returns the number of keys that are at least
// `probe`. Alternates interpolation with bisection, so at most 62 calls: counts fall almost evenly with the bits of a
// float32, which are almost logarithms.
template <class Reach>
constexpr TopkLimit topk_limit(const TopkBracket& bracket, std::int32_t keep, Reach reach) {
  std::uint32_t low = bracket.low;
  std::uint32_t high = bracket.high;
  std::int32_t from_low = bracket.from_low;
  std::int32_t from_high = 0;
  for (int turn = 0; high - low > 1; ++turn) {
    const std::uint32_t width = high - low;
    std::uint32_t step = width / 2;
    if (turn == 0 && low < bracket.guess && bracket.guess < high) {
      step = bracket.guess - low;
    } else if (turn % 2 == 0 && from_low > from_high) {
      const float share = static_cast<float>(from_low - keep) / static_cast<float>(from_low - from_high);
      step = std::clamp(static_cast<std::uint32_t>(static_cast<float>(width) * share), 1U, width - 1);
    }
    const std::uint32_t probe = low + step;
    const std::int32_t reached = reach(probe);
    if (reached == keep) {
      return {probe - 1, 0};
    }
    (reached > keep ? low : high) = probe;
    (reached > keep ? from_low : from_high) = reached;
  }
  return {low, keep - from_high};
}

}  // namespace sirtaki::kernels
