// Error feedback: what a compressing kernel reads of a gradient and what it leaves for the next one.
//
// For: kernels that send a part of a gradient. Owns nothing.
// Method: error feedback (Karimireddy et al., Error Feedback Fixes SignSGD, 2019).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/half/elements.h"

namespace sirtaki::kernels {

// Arrays of float32, maybe unaligned. What is compressed is a[i] = gradient[i] + residual[i], one float32 addition; a
// NaN that comes out is always the same one, as for reduce(). What is not sent of a[i] becomes left[i], exactly.
struct Feedback {
  const std::byte* gradient;
  const std::byte* residual = nullptr;  // null: a is the gradient, and what is not sent is lost
  std::byte* left = nullptr;            // null where `residual` is; may be `residual` or `gradient` itself

  bool valid() const { return (residual == nullptr) == (left == nullptr); }

  // The same arrays from an element on.
  Feedback from(std::int64_t element) const {
    const std::size_t at = static_cast<std::size_t>(element) * sizeof(float);
    return {gradient + at, residual == nullptr ? nullptr : residual + at, left == nullptr ? nullptr : left + at};
  }
};

namespace ref {

// a[i].
inline float element(const Feedback& arrays, std::size_t i) {
  using Float = Plain<float>;
  const float gradient = Float::load(arrays.gradient + i * sizeof(float));
  return canonical(arrays.residual == nullptr ? gradient : gradient + Float::load(arrays.residual + i * sizeof(float)));
}

}  // namespace ref

}  // namespace sirtaki::kernels
