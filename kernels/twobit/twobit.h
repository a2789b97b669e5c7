// Ternary codes: every element travels as the nearest of +t, -t and nothing, in two bit planes; the rest waits.
//
// For: codecs. Threads: pure functions; no allocation. Arrays hold float32; all memory may be unaligned.
// Not for: other dtypes (kernels/cast/cast.h), the choice of t.
// Method: threshold quantisation with error feedback (Strom, Scalable Distributed DNN Training Using Commodity GPU
// Cloud Computing, 2015). t is a power of two here, so that what is left is exact and sums of codes are, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"

namespace sirtaki::kernels {

// t = 2^exponent.
inline constexpr int kTwobitMinExponent = -149;
inline constexpr int kTwobitMaxExponent = 127;

// The planes of n elements, n >= 0: all bits of +t, then all of -t. Bit i % 8 of byte i / 8 is element i; bits behind
// the last element are 0.
std::size_t twobit_bytes(std::int64_t n);

struct TwobitStats {
  bool finite = true;     // all of a
  std::int64_t sent = 0;  // elements with a code
  // Sum of |a|: 16 float32 sums, of the elements i % 16, which go to a float64 in order after every 1024 elements.
  double magnitude = 0;
};

// Writes the planes and what they leave. a travels as the nearest of -t, 0 and t where |a| < 2^24 t; half of t counts
// as t. From there on a - t could not be left exactly: nothing travels until a larger t fits. Neither does NaN or
// infinity.
TwobitStats twobit_encode(int exponent, std::int64_t n, const Feedback& arrays, std::byte* planes);

// Whether these can be the planes of n elements: no element is in both, no bit stands behind the last.
bool twobit_valid(std::int64_t n, const std::byte* planes);

struct TwobitPart {
  const std::byte* planes;  // valid
  int exponent;
};

// out[i] = the sum of the parts' codes of element i, in their order, +0 to begin with. With equal exponents every sum
// is exact, whatever the order.
void twobit_sum(std::span<const TwobitPart> parts, std::int64_t n, std::byte* out);

// counts[i], an int8, = how many of the planes say + for element i less how many say -. At most 127 planes. Counts of
// several callers may be added: a sum over all ranks.
void twobit_count(std::span<const std::byte* const> planes, std::int64_t n, std::byte* counts);

// out[i] = counts[i] t.
void twobit_from_counts(int exponent, std::int64_t n, const std::byte* counts, std::byte* out);

// Counts of up to so many planes, as few bits each as they need: bit planes of counts[i] + most, the lowest bit first,
// each laid out as those of codes. 1 <= most <= 127.
inline constexpr int kTwobitMostCounted = 127;
int twobit_count_bits(int most);
std::size_t twobit_packed_bytes(int most, std::int64_t n);
void twobit_pack_counts(int most, std::int64_t n, const std::byte* counts, std::byte* planes);

// False: these cannot be the planes of n counts; `counts` is undefined then.
bool twobit_unpack_counts(int most, std::int64_t n, const std::byte* planes, std::byte* counts);

namespace ref {

// The meaning of the functions above, one element at a time.
TwobitStats twobit_encode(int exponent, std::int64_t n, const Feedback& arrays, std::byte* planes);
bool twobit_valid(std::int64_t n, const std::byte* planes);
void twobit_sum(std::span<const TwobitPart> parts, std::int64_t n, std::byte* out);
void twobit_count(std::span<const std::byte* const> planes, std::int64_t n, std::byte* counts);
void twobit_from_counts(int exponent, std::int64_t n, const std::byte* counts, std::byte* out);
void twobit_pack_counts(int most, std::int64_t n, const std::byte* counts, std::byte* planes);
bool twobit_unpack_counts(int most, std::int64_t n, const std::byte* planes, std::byte* counts);

}  // namespace ref
}  // namespace sirtaki::kernels
