// Error feedback: the inputs and the residual of a kernel that compresses a gradient.
//
// Used by kernels that send a part of a gradient. Owns nothing.
// Method: error feedback (Karimireddy et al., Error Feedback Fixes SignSGD, 2019).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/half/elements.h"

namespace sirtaki::kernels {

// Arrays of float32, possibly unaligned. A kernel compresses a[i] = gradient[i] + residual[i], one float32 addition
// whose NaN results are canonical, as in reduce(). The part of a[i] that is not sent becomes left[i], exactly.
struct Feedback {
  const std::byte* gradient;
  const std::byte* residual = nullptr;  // null: a is the gradient, and the part not sent is lost
  std::byte* left = nullptr;            // null where `residual` is; may be `residual` or `gradient` itself

  bool valid() const { return (residual == nullptr) == (left == nullptr); }

  // Returns the same arrays without the elements before `element`.
  Feedback from(std::int64_t element) const {
    const std::size_t at = static_cast<std::size_t>(element) * sizeof(float);
    return {gradient + at, residual == nullptr ? nullptr : residual + at, left == nullptr ? nullptr : left + at};
  }
};

namespace ref {

// Returns a[i].
inline float element(const Feedback& arrays, std::size_t i) {
  using Float = Plain<float>;
  const float gradient = Float::load(arrays.gradient + i * sizeof(float));
  return canonical(arrays.residual == nullptr ? gradient : gradient + Float::load(arrays.residual + i * sizeof(float)));
}

}  // namespace ref

}  // namespace sirtaki::kernels
