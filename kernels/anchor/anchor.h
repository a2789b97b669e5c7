// Arithmetic on a model, its anchor and the difference that ranks send.
//
// Used by local updates for snapshots, merges and guards. Arrays hold n float32, n >= 0, and may be unaligned; `out`
// may be one of the inputs, otherwise it does not overlap them. Each operation rounds to float32, and NaN results are
// canonical. Threads: pure functions; no allocation. Sums over ranks and weights are in kernels/scale/, the next anchor
// in kernels/outer_update/.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sirtaki::kernels {

// Writes out[i] = a[i] - b[i].
void subtract(std::int64_t n, const std::byte* a, const std::byte* b, std::byte* out);

// Subtracts before[i] - after[i] from model[i]: changes of the model since `before` stay. If both are equal numbers,
// the model keeps its bits, including those of -0.
// Method: delay-corrected merge (Shen et al., Faster Distributed Deep Net Training: CoCoD-SGD, 2019).
void carry_over(std::int64_t n, const std::byte* before, const std::byte* after, std::byte* model);

// Writes out[i] = a[i] - factor * b[i].
void subtract_scaled(std::int64_t n, const std::byte* a, float factor, const std::byte* b, std::byte* out);

// Returns the sum of squares of a[i] - b[i], or of a[i] if b is null. Element i is added to float64 sum i % 16; the 16
// sums start at +0 and are added in order at the end. The difference is rounded to float32, its square is exact.
double square_sum(std::int64_t n, const std::byte* a, const std::byte* b);

namespace ref {

// Reference implementations of the functions above, one element at a time.
void subtract(std::int64_t n, const std::byte* a, const std::byte* b, std::byte* out);
void carry_over(std::int64_t n, const std::byte* before, const std::byte* after, std::byte* model);
void subtract_scaled(std::int64_t n, const std::byte* a, float factor, const std::byte* b, std::byte* out);
double square_sum(std::int64_t n, const std::byte* a, const std::byte* b);

}  // namespace ref
}  // namespace sirtaki::kernels
