// Scaling of an array in place: by a factor, or by a count of ranks for averages.
//
// For: prescale, postscale and average of reductions. Threads: pure functions; no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

// data[i] *= factor for n elements, n >= 0; `data` may be unaligned.
//   float64             in float64
//   float32, halves     in float32 (the factor too), halves rounded once, to nearest even
//   integers            in float64, truncated towards 0; beyond the dtype's range its nearest end, NaN 0
//   bool                true stays true unless the factor makes 1 less than 1 (as an integer 0 or 1 would)
// A NaN that comes out is always the same one, as for reduce().
void scale(DType dtype, std::byte* data, std::int64_t n, double factor);

// data[i] /= count for n elements, n >= 0; count >= 1; `data` may be unaligned. Floating dtypes: the quotient itself
// (no multiplication by a rounded reciprocal), computed as above; integers: truncated towards 0. Not for bool.
void divide_by(DType dtype, std::byte* data, std::int64_t n, std::int64_t count);

namespace ref {

// The meaning of the functions above, one element at a time.
void scale(DType dtype, std::byte* data, std::int64_t n, double factor);
void divide_by(DType dtype, std::byte* data, std::int64_t n, std::int64_t count);

}  // namespace ref
}  // namespace sirtaki::kernels
