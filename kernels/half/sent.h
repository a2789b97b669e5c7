// One float32 as sent in a payload, and the exact residual that error feedback keeps.
//
// Used by kernels whose payload holds numbers. Threads: pure functions. kernels/cast/cast.h converts arrays.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/half/elements.h"

namespace sirtaki::kernels {

// The range of an Element: its largest finite number, and the magnitude below which value - kLargest is exact in
// float32. Beyond kLargest, rounding may give infinity.
template <class Element>
struct SentRange {
  static constexpr float kLargest = std::numeric_limits<float>::max();
  static constexpr float kExactBelow = 0;
};
template <>
struct SentRange<ref::F16> {
  static constexpr float kLargest = 65504.0F;
  static constexpr float kExactBelow = 0x1p29F;
};
template <>
struct SentRange<ref::BF16> {
  static constexpr float kLargest = 0x1.FEp127F;
  static constexpr float kExactBelow = std::numeric_limits<float>::infinity();
};

struct Sent {
  float left;   // value - sent, exact; +0 if the sent number is not finite
  bool finite;  // true if the sent number is finite
};

// The sent number as stored in memory, and the residual.
template <class Element>
struct SentBits {
  typename Element::Bits bits;
  Sent sent;
};

// Rounds `value` to an Element, to nearest. A finite number beyond the range of Element is sent as the largest finite
// one if the residual is exact, else as infinity.
template <class Element>
SIRTAKI_HOST_DEVICE SentBits<Element> sent_as(float value) {
  constexpr std::uint32_t kInfinity = 0x7F800000U;
  typename Element::Bits bits = Element::encode(value);
  float sent = Element::decode(bits);
  if (ref::magnitude_bits(sent) == kInfinity && std::fabs(value) < SentRange<Element>::kExactBelow) {
    bits = Element::encode(std::copysign(SentRange<Element>::kLargest, value));
    sent = Element::decode(bits);
  }
  const bool finite = ref::magnitude_bits(sent) < kInfinity;
  return {bits, {finite ? value - sent : 0.0F, finite}};
}

// Stores the result of sent_as().
template <class Element>
Sent send(float value, std::byte* to) {
  const SentBits<Element> sent = sent_as<Element>(value);
  std::memcpy(to, &sent.bits, Element::kSize);
  return sent.sent;
}

}  // namespace sirtaki::kernels
