// One float32 as it travels in a payload, and the exact rest that error feedback keeps.
//
// For: kernels whose payload holds numbers. Threads: pure functions. Not for: arrays (kernels/cast/cast.h).
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/half/elements.h"

namespace sirtaki::kernels {

// Where rounding to an Element gives infinity: the largest finite number, and the magnitude below which what is left
// beside it is a float32.
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
  float left;   // value - sent: exact, +0 where nothing is left or the sent number is not finite
  bool finite;  // of the number sent
};

// Stores `value` as an Element, rounded to nearest. A finite number beyond the range of Element travels as the largest
// finite one where the rest is exact, else as infinity.
template <class Element>
Sent send(float value, std::byte* to) {
  Element::store(value, to);
  float sent = Element::load(to);
  if (std::isinf(sent) && std::fabs(value) < SentRange<Element>::kExactBelow) {
    Element::store(std::copysign(SentRange<Element>::kLargest, value), to);
    sent = Element::load(to);
  }
  const bool finite = std::isfinite(sent);
  return {finite ? value - sent : 0.0F, finite};
}

}  // namespace sirtaki::kernels
