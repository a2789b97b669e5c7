// Casts between floating dtypes: arrays of float32 or float64 to float16 or bfloat16 and back.
//
// For: codecs. Threads: pure functions; no allocation. Not for: single numbers (kernels/half/half.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

// True for float32 and float64 to float16 and bfloat16, and for the four ways back.
bool can_cast(DType from, DType to);

// Converts n elements, n >= 0. Only where can_cast(); `in` and `out` do not overlap and may be unaligned.
// Rounds to nearest, ties to even; overflow becomes infinity; a NaN stays a NaN. float64 goes through float32, so it
// is rounded twice on its way to a half.
void cast(DType from, const std::byte* in, DType to, std::byte* out, std::int64_t n);

namespace ref {

// The meaning of cast(), one element at a time.
void cast(DType from, const std::byte* in, DType to, std::byte* out, std::int64_t n);

}  // namespace ref
}  // namespace sirtaki::kernels
