// Casts between floating dtypes: arrays of float32 or float64 to float16 or bfloat16 and back.
//
// Used by codecs. Threads: pure functions; no allocation. kernels/half/half.h converts single numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

// Returns true for float32 and float64 to float16 and bfloat16, and for the four casts back.
bool can_cast(DType from, DType to);

// Converts n elements, n >= 0. Requires can_cast(); `in` and `out` do not overlap and may be unaligned.
// Rounds to nearest, ties to even; overflow becomes infinity; a NaN stays a NaN. A float64 is rounded twice, since it
// is cast to float32 first.
void cast(DType from, const std::byte* in, DType to, std::byte* out, std::int64_t n);

namespace ref {

// Reference implementation of cast(), one element at a time.
void cast(DType from, const std::byte* in, DType to, std::byte* out, std::int64_t n);

}  // namespace ref
}  // namespace sirtaki::kernels
