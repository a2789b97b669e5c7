// Signs: every element travels as +s or -s, s the mean magnitude of its block; the rest waits.
//
// For: codecs. Threads: pure functions; no allocation. Arrays hold float32, in whole blocks from the start of a tensor
// (its last block may be short); all memory may be unaligned. Not for: elements that may stay (kernels/twobit/).
// Method: 1-bit SGD (Seide et al., 1-Bit Stochastic Gradient Descent, 2014) with the scaled sign of Karimireddy et al.,
// Error Feedback Fixes SignSGD, 2019. s is the power of two nearest to the mean, which costs at most a ninth of what
// the mean itself would take off the norm, and leaves more elements exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"

namespace sirtaki::kernels {

// Elements that share a scale: a multiple of kOnebitChunk, up to kOnebitLargestBlock.
inline constexpr std::int64_t kOnebitChunk = 64;
inline constexpr std::int64_t kOnebitLargestBlock = 65536;

// The payload of n elements, n >= 0: the exponents of all blocks' scales, int8; then the signs, 1 for below zero: bit
// i % 8 of byte i / 8 is element i; bits behind the last element are 0.
std::size_t onebit_bytes(std::int64_t block, std::int64_t n);

// s = 2^e, -126 <= e <= 127; a mean half way between two powers takes the larger. A block of smaller means has e =
// -128: nothing of it travels. One with a number that is not finite has e = -127: all of it means NaN. Both leave all
// of a. What is left of others is a -+ s, rounded to float32: exact where |a| >= s / 2, else within s 2^-25, which is
// as much as any sum with a number of that size is rounded. True when there is no block of e = -127.
bool onebit_encode(std::int64_t block, std::int64_t n, const Feedback& arrays, std::byte* payload);

// Whether this can be a payload of n elements: no bit stands behind the last.
bool onebit_valid(std::int64_t block, std::int64_t n, const std::byte* payload);

// out[i] = the sum of what the payloads, valid ones, mean for element i, in their order, +0 to begin with. A NaN that
// comes out is always the same one.
void onebit_sum(std::int64_t block, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

namespace ref {

// The meaning of the functions above, one element at a time.
bool onebit_encode(std::int64_t block, std::int64_t n, const Feedback& arrays, std::byte* payload);
void onebit_sum(std::int64_t block, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

}  // namespace ref
}  // namespace sirtaki::kernels
