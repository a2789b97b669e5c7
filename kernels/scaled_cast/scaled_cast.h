// Casts to 8 bits with a scale for each block of neighbouring elements: int8, and two kinds of 8-bit floats.
//
// For: codecs. Threads: pure functions; no allocation. Arrays hold float32, in whole blocks from the start of a tensor
// (its last block may be short); all memory may be unaligned. Not for: halves (kernels/cast/cast.h).
// Method: floats as in Micikevicius et al., FP8 Formats for Deep Learning, 2022; scales that are powers of two as in
// the OCP Microscaling Formats, 2023, so that what a cast leaves is exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"

namespace sirtaki::kernels {

enum class ScaledCode : std::uint8_t {
  kInt8,  // -127 to 127
  kE4M3,  // 4 bits of exponent, 3 of mantissa; up to 448
  kE5M2,  // 5 and 2; up to 57344
};

struct ScaledCast {
  ScaledCode code;
  std::int32_t block = 256;  // elements that share a scale: 1 to 65536
};

// The payload of n elements, n >= 0: the exponents of all blocks' scales, int8; then all codes, a byte each.
std::size_t scaled_bytes(const ScaledCast& how, std::int64_t n);

// The scale of a block is 2^e, e >= -126, the smallest that makes its largest magnitude a code. Codes are rounded to
// nearest, ties to even. A block with a number that is not finite has e = -128: all of it means NaN, and it leaves all
// of a. True when there is no such block.
bool scaled_encode(const ScaledCast& how, std::int64_t n, const Feedback& arrays, std::byte* payload);

// Whether scaled_encode() can have written this: no exponent and no code outside its range.
bool scaled_valid(const ScaledCast& how, std::int64_t n, const std::byte* payload);

// out[i] = the sum of what the payloads, valid ones, mean for element i, in their order, +0 to begin with. A NaN that
// comes out is always the same one.
void scaled_sum(const ScaledCast& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

namespace ref {

// The meaning of the functions above, one element at a time.
bool scaled_encode(const ScaledCast& how, std::int64_t n, const Feedback& arrays, std::byte* payload);
void scaled_sum(const ScaledCast& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

}  // namespace ref
}  // namespace sirtaki::kernels
