// Sizes in whole units, for offsets of aligned blocks.
//
// Pure. Not for counts of tensors, which are signed (scheduler/plan/arith.h).
#pragma once

#include <cstddef>

namespace sirtaki {

// Returns the smallest multiple of `unit` that is not below `bytes`. Requires unit > 0, and a sum without overflow.
constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace sirtaki
