// Which keys of a group are its largest: found by counting how many reach a probe, without sorting.
//
// For: CUDA kernels, whose keys lie in registers; the counting is theirs. Threads: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sirtaki::kernels {

// The keys above `key` are taken, and the first `equal` of those that equal it.
struct TopkLimit {
  std::uint32_t key;
  std::int32_t equal;
};

// What is known before the search.
struct TopkBracket {
  std::uint32_t low;      // at least as many keys as are wanted reach it
  std::uint32_t high;     // no key does
  std::int32_t from_low;  // how many reach `low`; 0: not known
  std::uint32_t guess;    // tried first where it lies between the two
};

// reach(probe), probe >= 1: how many keys are at least `probe`. By turns of a guess between the ends, as counts fall
// evenly with the bits of a float32, which are almost logarithms, and of halving; so at most 62 calls.
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
