// Where payloads lie in the blocks that reductions on a GPU exchange: at words, which kernels ask for, in blocks that
// begin at multiples of what they read faster.
//
// For: DeviceGather, DeviceByHost. Pure functions.
#pragma once

#include <cstddef>
#include <cstring>

#include "runtime/base/types.h"

namespace sirtaki::engine {

inline constexpr std::size_t kPayloadAlign = 4;
inline constexpr std::size_t kBlockAlign = 16;

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// What lies between payloads travels, too: nothing that was in the memory before. Called with what is used, in order;
// `end` is where the last one ended, at first 0.
inline void clear_until(Bytes block, std::size_t begin, std::size_t& end, std::size_t bytes) {
  std::memset(block.data() + end, 0, begin - end);
  end = begin + bytes;
}

}  // namespace sirtaki::engine
