// Codes of 8 and 4 bits, one number at a time, and the scale of a block.
//
// Private to this folder, its CUDA sources and its tests. Threads: pure functions. The vector counterpart is in cpu.cc.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/half/elements.h"
#include "kernels/host_device.h"
#include "kernels/scaled_cast/scaled_cast.h"

namespace sirtaki::kernels {

inline constexpr std::int8_t kNotFinite = -128;
inline constexpr int kMinScale = -126;

SIRTAKI_HOST_DEVICE inline float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// An 8-bit float with kMantissa bits of mantissa, whose smallest normal number is 2^kMinExponent.
template <int kMantissa, int kMinExponent, int kMaxExponent>
struct SmallFloat {
  // The largest magnitude is 1.75 * 2^kMaxExponent in both formats; larger codes are NaN or infinity.
  static constexpr int kBits = 8;
  static constexpr int kLargestExponent = kMaxExponent;
  static constexpr std::uint32_t kLargestMantissa = 0x600000;
  static constexpr std::uint8_t kLargestCode =
      static_cast<std::uint8_t>(((kMaxExponent - kMinExponent + 1) << kMantissa) + (3 << (kMantissa - 2)));

  // Requires |x| to be at most the largest magnitude.
  SIRTAKI_HOST_DEVICE static std::uint8_t encode(float x) {
    const std::uint32_t bits = ref::magnitude_bits(x);
    const int own = static_cast<int>(bits >> 23) - 127;
    const int exponent = own < kMinExponent ? kMinExponent : own;
    // The shift moves x to a binade where float32 has steps as large as the last place of the code, so this addition
    // rounds. A number that rounds up to the next power of two gets the next code, as it must.
    const float shift = power_of_two(exponent - kMantissa + 23);
    const float shifted = std::bit_cast<float>(bits) + shift;
    const auto units = static_cast<int>(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(shift));
    const int code = units + ((exponent - kMinExponent) << kMantissa);
    return static_cast<std::uint8_t>(code | (std::bit_cast<std::int32_t>(x) < 0 ? 0x80 : 0));
  }
  SIRTAKI_HOST_DEVICE static float decode(std::uint8_t code) {
    const int exponent = (code & 0x7F) >> kMantissa;
    const int mantissa = code & ((1 << kMantissa) - 1);
    const int units = exponent == 0 ? mantissa : mantissa + (1 << kMantissa);
    const int place = (exponent == 0 ? 0 : exponent - 1) + kMinExponent - kMantissa;
    const float magnitude = static_cast<float>(units) * power_of_two(place);
    return (code & 0x80) != 0 ? -magnitude : magnitude;
  }
  static bool valid(std::uint8_t code) { return (code & 0x7F) <= kLargestCode; }
};
using E4M3 = SmallFloat<3, -6, 8>;
using E5M2 = SmallFloat<2, -14, 15>;

// Two's complement; 127 is 1.984375 * 2^6.
struct Int8 {
  static constexpr int kBits = 8;
  static constexpr int kLargestExponent = 6;
  static constexpr std::uint32_t kLargestMantissa = 0x7E0000;
  SIRTAKI_HOST_DEVICE static std::uint8_t encode(float x) {
    return static_cast<std::uint8_t>(static_cast<int>(std::nearbyint(x)));
  }
  SIRTAKI_HOST_DEVICE static float decode(std::uint8_t code) {
    return static_cast<float>(static_cast<std::int8_t>(code));
  }
  static bool valid(std::uint8_t code) { return code != 0x80; }
};

// Two's complement in the low 4 bits; 7 is 1.75 * 2^2.
struct Int4 {
  static constexpr int kBits = 4;
  static constexpr int kLargestExponent = 2;
  static constexpr std::uint32_t kLargestMantissa = 0x600000;
  static std::uint8_t encode(float x) {
    return static_cast<std::uint8_t>(static_cast<unsigned>(static_cast<int>(std::nearbyint(x))) & 0xFU);
  }
  static float decode(std::uint8_t code) { return static_cast<float>(((code & 0xF) ^ 8) - 8); }
  // Takes the two codes of a byte.
  static bool valid(std::uint8_t codes) { return (codes & 0xF) != 8 && (codes >> 4) != 8; }
};

// Returns the bytes of the codes of n elements of one block.
template <class Code>
constexpr std::size_t code_bytes(std::size_t n) {
  return (n * Code::kBits + 7) / 8;
}

// Returns the exponent of the scale of a block; `largest`: bits of its largest magnitude.
template <class Code>
SIRTAKI_HOST_DEVICE std::int8_t scale_of(std::uint32_t largest) {
  if (largest >= 0x7F800000U) {
    return kNotFinite;
  }
  const int exponent = static_cast<int>(largest >> 23) - 127;
  const bool above = (largest & 0x7FFFFFU) > Code::kLargestMantissa;
  const int scale = exponent - Code::kLargestExponent + (above ? 1 : 0);
  return static_cast<std::int8_t>(scale < kMinScale ? kMinScale : scale);
}

inline std::size_t scaled_blocks(const ScaledCast& how, std::size_t n) {
  const auto block = static_cast<std::size_t>(how.block);
  return (n + block - 1) / block;
}

// Calls body.template operator()<Code>() with the type of `code`, if that is a code of 8 bits.
template <class Body>
void with_byte_code_type(ScaledCode code, Body body) {
  switch (code) {
    case ScaledCode::kInt8:
      return body.template operator()<Int8>();
    case ScaledCode::kE4M3:
      return body.template operator()<E4M3>();
    case ScaledCode::kE5M2:
      return body.template operator()<E5M2>();
    case ScaledCode::kInt4:
      return;
  }
}

// Calls body.template operator()<Code>() with the type of `code`.
template <class Body>
void with_code_type(ScaledCode code, Body body) {
  if (code == ScaledCode::kInt4) {
    return body.template operator()<Int4>();
  }
  with_byte_code_type(code, body);
}

}  // namespace sirtaki::kernels
