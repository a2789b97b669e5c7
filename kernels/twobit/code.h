// One element of a ternary code, and its residual.
//
// Used by the reference and CUDA sources of this folder. Threads: pure functions. The vector counterpart is in cpu.cc.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/twobit/twobit.h"

namespace sirtaki::kernels {

// Returns 2^exponent, exponent >= kTwobitMinExponent; infinity from 2^128 on.
SIRTAKI_HOST_DEVICE inline float twobit_power(int exponent) {
  if (exponent > kTwobitMaxExponent) {
    return std::bit_cast<float>(0x7F800000U);
  }
  return std::bit_cast<float>(exponent >= -126 ? static_cast<std::uint32_t>(exponent + 127) << 23
                                               : std::uint32_t{1} << (exponent + 149));
}

struct TwobitLevel {
  float t;
  float least;  // the smallest magnitude that is sent
  float limit;  // the smallest magnitude that is too large to be sent
};
SIRTAKI_HOST_DEVICE inline TwobitLevel twobit_level(int exponent) {
  const int half = exponent > kTwobitMinExponent ? exponent - 1 : kTwobitMinExponent;
  return {twobit_power(exponent), twobit_power(half), twobit_power(exponent + 24)};
}

struct TwobitTaken {
  int code;  // 1, -1 or 0
  float left;
};
SIRTAKI_HOST_DEVICE inline TwobitTaken twobit_take(const TwobitLevel& level, float a) {
  const float size = std::fabs(a);
  if (!(size >= level.least && size < level.limit)) {
    return {0, a};
  }
  return a > 0 ? TwobitTaken{1, a - level.t} : TwobitTaken{-1, a + level.t};
}

}  // namespace sirtaki::kernels
