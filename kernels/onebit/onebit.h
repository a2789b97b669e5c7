// Scaled signs: every element is sent as +s or -s, where s approximates the mean magnitude of its block; the residual
// keeps the rest.
//
// Used by codecs. Threads: pure functions; no allocation. Arrays hold float32, in whole blocks from the start of a
// tensor (its last block may be short); all memory may be unaligned. kernels/twobit/ is for codes that may skip
// elements.
// Method: 1-bit SGD (Seide et al., 1-Bit Stochastic Gradient Descent, 2014) with the scaled sign of Karimireddy et al.,
// Error Feedback Fixes SignSGD, 2019. s is the power of two nearest to the mean: this costs at most a ninth of the
// reduction of the norm that the mean itself achieves, and leaves more elements exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"

namespace sirtaki::kernels {

// Elements that share a scale: a multiple of kOnebitChunk, up to kOnebitLargestBlock.
inline constexpr std::int64_t kOnebitChunk = 64;
inline constexpr std::int64_t kOnebitLargestBlock = 65536;

// The payload of n elements, n >= 0: the exponents of the scales of all blocks, int8; then the signs, 1 for negative.
// Bit i % 8 of byte i / 8 is element i; bits after the last element are 0.
std::size_t onebit_bytes(std::int64_t block, std::int64_t n);

// Writes the payload and the residual. s = 2^e, -126 <= e <= 127; a mean half way between two powers takes the larger.
// A block with a smaller mean has e = -128 and sends nothing; a block with a number that is not finite has e = -127 and
// decodes to NaN. The residual of both is all of a. The residual of other blocks is a -+ s, rounded to float32: exact
// if |a| >= s / 2, else within s 2^-25, the rounding of any sum of that magnitude. Returns true if no block has e =
// -127.
bool onebit_encode(std::int64_t block, std::int64_t n, const Feedback& arrays, std::byte* payload);

// Returns true if `payload` can be one of n elements: no bit after the last element is set.
bool onebit_valid(std::int64_t block, std::int64_t n, const std::byte* payload);

// Writes the sum of the decoded payloads, which must be valid, to `out`; adds in their order, starting at +0. NaN
// results are canonical.
void onebit_sum(std::int64_t block, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

namespace ref {

// Reference implementations of the functions above, one element at a time.
bool onebit_encode(std::int64_t block, std::int64_t n, const Feedback& arrays, std::byte* payload);
void onebit_sum(std::int64_t block, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

}  // namespace ref
}  // namespace sirtaki::kernels
