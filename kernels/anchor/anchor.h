// Arithmetic between a model, its anchor and what ranks send of their difference.
//
// For: local updates: snapshots, merges, what guards pull back. Arrays hold n float32, n >= 0; they may be unaligned,
// and `out` may be one of the others, which else do not overlap it. Each operation is rounded to float32. Threads: pure
// functions; no allocation. Not for: sums over ranks, weights (kernels/scale/), the next anchor
// (kernels/outer_update/).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sirtaki::kernels {

// out[i] = a[i] - b[i]. As in all of these, a NaN that comes out is always the same one.
void subtract(std::int64_t n, const std::byte* a, const std::byte* b, std::byte* out);

// model[i] -= before[i] - after[i]: what has happened to the model since `before` stays. Where both are equal numbers
// the model keeps its bits, -0 among them.
// Method: delay-corrected merge (Shen et al., Faster Distributed Deep Net Training: CoCoD-SGD, 2019).
void carry_over(std::int64_t n, const std::byte* before, const std::byte* after, std::byte* model);

// out[i] = a[i] - factor * b[i].
void subtract_scaled(std::int64_t n, const std::byte* a, float factor, const std::byte* b, std::byte* out);

// The sum of squares of a[i] - b[i], or of a[i] where b is null; 16 float64 sums, of the elements i % 16, added in
// order at the end, +0 to begin with. The difference is rounded to float32, its square is exact.
double square_sum(std::int64_t n, const std::byte* a, const std::byte* b);

namespace ref {

// The meaning of the functions above, one element at a time.
void subtract(std::int64_t n, const std::byte* a, const std::byte* b, std::byte* out);
void carry_over(std::int64_t n, const std::byte* before, const std::byte* after, std::byte* model);
void subtract_scaled(std::int64_t n, const std::byte* a, float factor, const std::byte* b, std::byte* out);
double square_sum(std::int64_t n, const std::byte* a, const std::byte* b);

}  // namespace ref
}  // namespace sirtaki::kernels
