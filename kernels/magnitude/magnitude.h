// Sum and maximum of the magnitudes of an array.
//
// Used by codecs that choose a threshold or a scale before they encode. Threads: pure functions; no allocation. Arrays
// hold float32; all memory may be unaligned. kernels/filter/ computes norms that come with a copy of a.
#pragma once

#include <cstdint>

#include "kernels/feedback.h"

namespace sirtaki::kernels {

struct Magnitude {
  // Sum of 16 float64 sums that start at +0, of the elements i % 16, added in order at the end. Finite if all elements
  // are.
  double sum = 0;
  float largest = 0;  // NaN if any element is
};

// Returns the magnitudes of a[i], i < n, n >= 0. Writes nothing: `left` is not used.
Magnitude magnitude(std::int64_t n, const Feedback& arrays);

namespace ref {

// Reference implementation of magnitude(), one element at a time.
Magnitude magnitude(std::int64_t n, const Feedback& arrays);

}  // namespace ref
}  // namespace sirtaki::kernels
