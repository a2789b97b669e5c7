// Element policies: load and store one number of a dtype in the reference and CUDA kernels. Halves are computed in
// float32. `Bits` is the memory representation of an element.
//
// Threads: pure functions. The vector counterpart is half-inl.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/half/half.h"

namespace sirtaki::kernels::ref {

template <class T>
struct Plain {
  using Value = T;
  using Bits = T;
  static constexpr std::size_t kSize = sizeof(T);
  SIRTAKI_HOST_DEVICE static T encode(T value) { return value; }
  SIRTAKI_HOST_DEVICE static T decode(T bits) { return bits; }
  static T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  static void store(T value, std::byte* to) { std::memcpy(to, &value, sizeof(T)); }
};

template <float (*Widen)(std::uint16_t), std::uint16_t (*Narrow)(float)>
struct Half {
  using Value = float;
  using Bits = std::uint16_t;
  static constexpr std::size_t kSize = 2;
  SIRTAKI_HOST_DEVICE static std::uint16_t encode(float value) { return Narrow(value); }
  SIRTAKI_HOST_DEVICE static float decode(std::uint16_t bits) { return Widen(bits); }
  static float load(const std::byte* from) { return decode(Plain<std::uint16_t>::load(from)); }
  static void store(float value, std::byte* to) { Plain<std::uint16_t>::store(encode(value), to); }
};
using F16 = Half<f16_to_f32, f32_to_f16>;
using BF16 = Half<bf16_to_f32, f32_to_bf16>;

// Any byte but 0 is true; stored as 0 or 1.
struct Bool {
  using Value = bool;
  using Bits = std::uint8_t;
  static constexpr std::size_t kSize = 1;
  SIRTAKI_HOST_DEVICE static std::uint8_t encode(bool value) { return value ? 1 : 0; }
  SIRTAKI_HOST_DEVICE static bool decode(std::uint8_t bits) { return bits != 0; }
  static bool load(const std::byte* from) { return *from != std::byte{0}; }
  static void store(bool value, std::byte* to) { *to = static_cast<std::byte>(value); }
};

// Returns the canonical NaN for any NaN, so that the result does not depend on the operands; other numbers unchanged.
template <class T>
SIRTAKI_HOST_DEVICE T canonical(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return value != value ? std::numeric_limits<T>::quiet_NaN() : value;
  } else {
    return value;
  }
}

// Returns the bits of a float32 without its sign; they compare like magnitudes, with NaN above infinity.
SIRTAKI_HOST_DEVICE inline std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU;
}

}  // namespace sirtaki::kernels::ref
