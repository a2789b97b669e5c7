// How large the elements of an array are: the sum of their magnitudes, and the largest.
//
// For: codecs that choose a threshold or a scale before they encode. Threads: pure functions; no allocation. Arrays
// hold float32; all memory may be unaligned. Not for: norms that come with a copy of a (kernels/filter/).
#pragma once

#include <cstdint>

#include "kernels/feedback.h"

namespace sirtaki::kernels {

struct Magnitude {
  // 16 float64 sums, of the elements i % 16, added in order at the end, +0 to begin with. Finite where all elements
  // are.
  double sum = 0;
  float largest = 0;  // NaN if there is one
};

// Of a[i], i < n, n >= 0. Writes nothing: `left` is not used.
Magnitude magnitude(std::int64_t n, const Feedback& arrays);

namespace ref {

// The meaning of magnitude(), one element at a time.
Magnitude magnitude(std::int64_t n, const Feedback& arrays);

}  // namespace ref
}  // namespace sirtaki::kernels
