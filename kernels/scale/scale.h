// Scaling of an array in place: by a factor, or by the number of ranks of an average.
//
// Used by reductions for prescale, postscale and average. Threads: pure functions; no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

// Computes data[i] *= factor for n elements, n >= 0; `data` may be unaligned.
//   float64             in float64
//   float32, halves     in float32 (the factor too), halves rounded once, to nearest even
//   integers            in float64, truncated towards 0 and clamped to the range of the dtype; NaN becomes 0
//   bool                true stays true unless the factor makes 1 less than 1 (like the integers 0 and 1)
// NaN results are canonical, as in reduce().
void scale(DType dtype, std::byte* data, std::int64_t n, double factor);

// Computes data[i] /= count for n elements, n >= 0; count >= 1; `data` may be unaligned. Floating dtypes: the quotient
// itself (no multiplication by a rounded reciprocal), computed as in scale(); integers: truncated towards 0. Not
// defined for bool.
void divide_by(DType dtype, std::byte* data, std::int64_t n, std::int64_t count);

namespace ref {

// Reference implementations of the functions above, one element at a time.
void scale(DType dtype, std::byte* data, std::int64_t n, double factor);
void divide_by(DType dtype, std::byte* data, std::int64_t n, std::int64_t count);

}  // namespace ref
}  // namespace sirtaki::kernels
