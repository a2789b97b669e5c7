// Whether an array holds a NaN or an infinity.
//
// For: codecs, which look before they touch their residuals. Threads: pure functions; no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

// True when none of n elements, n >= 0, is NaN or infinite; so for integers and bool. `data` may be unaligned.
bool all_finite(DType dtype, const std::byte* data, std::int64_t n);

namespace ref {

// The meaning of all_finite(), one element at a time.
bool all_finite(DType dtype, const std::byte* data, std::int64_t n);

}  // namespace ref
}  // namespace sirtaki::kernels
