// Ternary codes: every element is sent as the nearest of +t, -t and 0, in two bit planes; the residual keeps the rest.
//
// Used by codecs, which choose t. Threads: pure functions; no allocation. Arrays hold float32; all memory may be
// unaligned. kernels/cast/cast.h converts other dtypes.
// Method: threshold quantisation with error feedback (Strom, Scalable Distributed DNN Training Using Commodity GPU
// Cloud Computing, 2015). Here t is a power of two, so that residuals and sums of codes are exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"

namespace sirtaki::kernels {

// Range of `exponent`; t = 2^exponent.
inline constexpr int kTwobitMinExponent = -149;
inline constexpr int kTwobitMaxExponent = 127;

// The planes of n elements, n >= 0: all bits of +t, then all of -t. Bit i % 8 of byte i / 8 is element i; bits after
// the last element are 0.
std::size_t twobit_bytes(std::int64_t n);

struct TwobitStats {
  bool finite = true;     // all a[i] are finite
  std::int64_t sent = 0;  // elements with a code
  // Sum of |a|: 16 float32 sums, of the elements i % 16, which are added to a float64 in order after every 1024
  // elements.
  double magnitude = 0;
};

// Writes the planes and the residual. If |a| < 2^24 t, a is sent as the nearest of -t, 0 and t; half of t counts as t.
// Beyond that a - t would not be exact: the element stays in the residual until a larger t fits. NaN and infinity are
// never sent.
TwobitStats twobit_encode(int exponent, std::int64_t n, const Feedback& arrays, std::byte* planes);

// Returns true if `planes` can be those of n elements: no element is in both, no bit after the last element is set.
bool twobit_valid(std::int64_t n, const std::byte* planes);

struct TwobitPart {
  const std::byte* planes;  // valid
  int exponent;
};

// Writes the sum of the decoded parts, in their order, starting at +0, to `out`. With equal exponents every sum is
// exact, whatever the order.
void twobit_sum(std::span<const TwobitPart> parts, std::int64_t n, std::byte* out);

// Writes counts[i], an int8: the number of planes with + for element i minus the number with -. At most 127 planes.
// Counts of several ranks may be added to a sum over all.
void twobit_count(std::span<const std::byte* const> planes, std::int64_t n, std::byte* counts);

// Computes out[i] = counts[i] t.
void twobit_from_counts(int exponent, std::int64_t n, const std::byte* counts, std::byte* out);

// Packs counts of up to `most` planes into as few bits as they need: bit planes of counts[i] + most, the lowest bit
// first, each in the layout of the planes of codes. 1 <= most <= 127.
inline constexpr int kTwobitMostCounted = 127;
int twobit_count_bits(int most);
std::size_t twobit_packed_bytes(int most, std::int64_t n);
void twobit_pack_counts(int most, std::int64_t n, const std::byte* counts, std::byte* planes);

// Returns false if these cannot be the planes of n counts; `counts` is undefined then.
bool twobit_unpack_counts(int most, std::int64_t n, const std::byte* planes, std::byte* counts);

namespace ref {

// Reference implementations of the functions above, one element at a time.
TwobitStats twobit_encode(int exponent, std::int64_t n, const Feedback& arrays, std::byte* planes);
void twobit_sum(std::span<const TwobitPart> parts, std::int64_t n, std::byte* out);
void twobit_count(std::span<const std::byte* const> planes, std::int64_t n, std::byte* counts);
void twobit_from_counts(int exponent, std::int64_t n, const std::byte* counts, std::byte* out);
void twobit_pack_counts(int most, std::int64_t n, const std::byte* counts, std::byte* planes);
bool twobit_unpack_counts(int most, std::int64_t n, const std::byte* planes, std::byte* counts);

}  // namespace ref
}  // namespace sirtaki::kernels
