// Detection of NaN and infinity in an array.
//
// Used by codecs, which check a gradient before they touch its residual. Threads: pure functions; no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

// Returns true if no element of n, n >= 0, is NaN or infinite; always true for integers and bool. `data` may be
// unaligned.
bool all_finite(DType dtype, const std::byte* data, std::int64_t n);

namespace ref {

// Reference implementation of all_finite(), one element at a time.
bool all_finite(DType dtype, const std::byte* data, std::int64_t n);

}  // namespace ref
}  // namespace sirtaki::kernels
