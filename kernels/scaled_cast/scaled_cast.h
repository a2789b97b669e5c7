// Casts to integers of 8 or 4 bits, and to two formats of 8-bit floats, with a scale for each block of consecutive
// elements.
//
// Used by codecs. Threads: pure functions; no allocation. Arrays hold float32, in whole blocks from the start of a
// tensor (its last block may be short); all memory may be unaligned. kernels/cast/cast.h is for halves.
// Method: floats of Micikevicius et al., FP8 Formats for Deep Learning, 2022; scales that are powers of two as in the
// OCP Microscaling Formats, 2023, so that the residual of a cast is exact.
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
  kInt4,  // -7 to 7, two elements a byte; without a CUDA kernel
};

struct ScaledCast {
  ScaledCode code;
  std::int32_t block = 256;  // elements that share a scale: 1 to 65536
};

// The payload of n elements, n >= 0: the exponents of the scales of all blocks, int8; then all codes, a byte each.
// Codes of 4 bits share bytes within their block: the first of two has the low bits; 4 zero bits follow an odd last
// one.
std::size_t scaled_bytes(const ScaledCast& how, std::int64_t n);

// Writes the payload and the residual. The scale of a block is 2^e, e >= -126, the smallest whose codes reach the
// largest magnitude of the block. Codes are rounded to nearest, ties to even. A block with a number that is not finite
// has e = -128: it decodes to NaN, and its residual is all of a. Returns true if there is no such block.
bool scaled_encode(const ScaledCast& how, std::int64_t n, const Feedback& arrays, std::byte* payload);

// Returns true if scaled_encode() can have written `payload`: no exponent and no code is out of range.
bool scaled_valid(const ScaledCast& how, std::int64_t n, const std::byte* payload);

// Writes the sum of the decoded payloads, which must be valid, to `out`; adds in their order, starting at +0. NaN
// results are canonical.
void scaled_sum(const ScaledCast& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

namespace ref {

// Reference implementations of the functions above, one element at a time.
bool scaled_encode(const ScaledCast& how, std::int64_t n, const Feedback& arrays, std::byte* payload);
void scaled_sum(const ScaledCast& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

}  // namespace ref
}  // namespace sirtaki::kernels
