// Conversions of float16 and bfloat16 to float32 and back, one number at a time: the definition that all kernels
// follow.
//
// Used by the reference and CUDA kernels and by tests. The vector counterpart, bit for bit the same, is half-inl.h.
// Threads: pure functions. kernels/cast/cast.h converts arrays.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/host_device.h"

namespace sirtaki::kernels {

// Exact. A NaN keeps its sign and payload and becomes quiet.
SIRTAKI_HOST_DEVICE inline float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1FU;
  const std::uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0x1F) {
    const std::uint32_t quiet = mantissa == 0 ? 0 : 0x400000U;
    return std::bit_cast<float>(sign | 0x7F800000U | quiet | (mantissa << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

// Rounds to nearest, ties to even; 65520 and more become infinity. A NaN keeps its sign and the top of its payload and
// becomes quiet.
SIRTAKI_HOST_DEVICE inline std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  }
  if (magnitude >= 0x47800000U) {
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  if (magnitude < 0x38800000U) {
    // In 0.5's binade the last mantissa bit weighs 2^-24, a half's smallest step, so this addition rounds for us.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - (112U << 23);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

// Exact; a NaN stays as it is.
SIRTAKI_HOST_DEVICE inline float bf16_to_f32(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

// Rounds to nearest, ties to even; overflow becomes infinity. A NaN keeps its sign and the top of its payload and
// becomes quiet.
SIRTAKI_HOST_DEVICE inline std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace sirtaki::kernels
