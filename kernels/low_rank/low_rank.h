// A matrix as a product of two thin factors: A ~ P Q', found by one step of the power method.
//
// Used by codecs that send factors. Threads: pure functions; no allocation. A = gradient + residual is rows x cols
// float32, row-major; P is `rank` contiguous vectors of `rows` float32, Q is `rank` vectors of `cols`. All memory may
// be unaligned. The codec exchanges the factors and chooses the initial Q.
// Method: PowerSGD (Vogels, Karimireddy, Jaggi, 2019): P = A Q; the mean of P over all ranks is made orthonormal; Q =
// A' P; with the mean of Q, P Q' approximates the mean of A, and every rank keeps A - P Q'.
// Every product is rounded to float32 before it is added, in a fixed order, so that all targets give the same bits. NaN
// results are canonical.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/feedback.h"

namespace sirtaki::kernels {

struct LowRank {
  std::int64_t rows;
  std::int64_t cols;
  std::int32_t rank;  // 1 to kMostRank
};
inline constexpr std::int32_t kMostRank = 32;

// Computes P = A Q. A dot product is 16 float32 sums that start at +0, of the columns j % 16; then the second half of
// the sums is added to the first until one is left. `left` is not used.
void low_rank_project(const LowRank& shape, const Feedback& arrays, const std::byte* q, std::byte* p);

// Computes Q = A' P. A dot product is one float32 sum that starts at +0, row after row. `left` is not used.
void low_rank_project_back(const LowRank& shape, const Feedback& arrays, const std::byte* p, std::byte* q);

// Computes out = P Q', products added in the order of the vectors, starting at +0, and left = a - out, rounded. `out`
// does not overlap other arrays; it is null if only the residual is wanted.
void low_rank_rebuild(const LowRank& shape, const Feedback& arrays, const std::byte* p, const std::byte* q,
                      std::byte* out);

// Makes `rank` vectors of n float32 orthonormal by Gram-Schmidt, each vector against all before it, twice. Products and
// sums are float64: 8 sums, of the elements i % 8, halved as above. A vector that keeps less than 10^-5 of its length
// depends linearly on the others at the precision of float32; it becomes zero, and so do vectors that are not finite.
// Returns these vectors, bit k for vector k: their Q must be initialised again.
std::uint32_t orthonormalise(std::int64_t n, std::int32_t rank, std::byte* vectors);

namespace ref {

// Reference implementations of the functions above, one element at a time.
void low_rank_project(const LowRank& shape, const Feedback& arrays, const std::byte* q, std::byte* p);
void low_rank_project_back(const LowRank& shape, const Feedback& arrays, const std::byte* p, std::byte* q);
void low_rank_rebuild(const LowRank& shape, const Feedback& arrays, const std::byte* p, const std::byte* q,
                      std::byte* out);

}  // namespace ref
}  // namespace sirtaki::kernels
