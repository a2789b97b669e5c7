// Reduction of arrays of one dtype, element by element, in the order of the sources.
//
// For: the collectives' sums and averages. Threads: pure functions; no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/dtype.h"
#include "runtime/base/tensor.h"

namespace sirtaki::kernels {

// out[i] = ((s0[i] op s1[i]) op s2[i]) ... for n elements, n >= 0; at least one source. Pointers may be unaligned.
// `out` may be one of the sources; otherwise no source overlaps it.
//   float16, bfloat16  computed in float32 and rounded once, to nearest even
//   integers           wrap around
//   bool               sum and max are OR, product and min AND; any byte but 0 is true, the result is 0 or 1
//   min, max           a NaN wins; of two equal numbers (-0 and 0) the first source's
// A NaN that comes out is always the same one (quiet, positive, no payload), so results have the same bits on every
// CPU. One source is copied as it is. kAverage is computed as kSum.
// Not for kAdasum.
void reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n);

// The sum divided by `count`, which is above 0: as reduce() and divide_by() (kernels/scale/scale.h) compute them, but
// halves are rounded only once, behind the division: a mean that fits comes out although the sum does not fit. `count`
// is a whole number for all but halves. Not for bool.
void average(DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n, double count);

namespace ref {

// The meaning of the functions above, one element at a time.
void reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n);
void average(DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n, double count);

}  // namespace ref
}  // namespace sirtaki::kernels
