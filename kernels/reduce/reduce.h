// Reduction of arrays of one dtype, element by element, in the order of the sources.
//
// Used by collectives for sums and averages. Threads: pure functions; no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/dtype.h"
#include "runtime/base/tensor.h"

namespace sirtaki::kernels {

// Computes out[i] = ((s0[i] op s1[i]) op s2[i]) ... for n elements, n >= 0; at least one source. Pointers may be
// unaligned. `out` may be one of the sources; otherwise no source overlaps it.
//   float16, bfloat16  computed in float32 and rounded once, to nearest even
//   integers           wrap around
//   bool               sum and max are OR, product and min AND; any byte but 0 is true, the result is 0 or 1
//   min, max           a NaN wins; of two equal numbers (-0 and 0) that of the first source
// NaN results are canonical (quiet, positive, no payload), so results have the same bits on every CPU. A single source
// is copied bit for bit. kAverage is computed as kSum. kAdasum is not supported.
void reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n);

// Computes the sum divided by `count`, which is above 0. The result is that of reduce() and divide_by()
// (kernels/scale/scale.h), but halves are rounded only once, after the division: the mean does not overflow even if the
// sum does. `count` is a whole number for all dtypes but halves. Not defined for bool.
void average(DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n, double count);

namespace ref {

// Reference implementations of the functions above, one element at a time.
void reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n);
void average(DType dtype, std::span<const std::byte* const> sources, std::byte* out, std::int64_t n, double count);

}  // namespace ref
}  // namespace sirtaki::kernels
