// A matrix as a product of two thin factors: A ~ P Q', found by one step of the power method.
//
// For: codecs that send factors. Threads: pure functions; no allocation. A = gradient + residual is rows x cols
// float32, row by row; P is `rank` vectors of rows float32, one behind the other, Q as many of cols. All memory may be
// unaligned. Not for: how factors travel, what Q is at the very first.
// Method: PowerSGD (Vogels, Karimireddy, Jaggi, 2019): P = A Q; the mean of P over all ranks is made orthonormal;
// Q = A' P; with the mean of Q, P Q' stands for the mean of A, and every rank keeps A - P Q'.
// Every product is rounded to float32 before it is added, in an order that is stated, so that all targets give the same
// bits. A NaN that comes out is always the same one.
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

// P = A Q. A sum is 16 float32 sums, of the columns j % 16, +0 to begin with; then the second half of them is added to
// the first until one is left. `left` is not used.
void low_rank_project(const LowRank& shape, const Feedback& arrays, const std::byte* q, std::byte* p);

// Q = A' P. A sum is one float32, +0 to begin with, row after row. `left` is not used.
void low_rank_project_back(const LowRank& shape, const Feedback& arrays, const std::byte* p, std::byte* q);

// out = P Q', products added in the order of the vectors, +0 to begin with; left = a - out, rounded. `out` is an array
// of its own, or null where only what is left is wanted.
void low_rank_rebuild(const LowRank& shape, const Feedback& arrays, const std::byte* p, const std::byte* q,
                      std::byte* out);

// Makes `rank` vectors of n float32 orthonormal: Gram and Schmidt's way, each vector against all before it, twice.
// Products and sums are float64: 8 sums, of the elements i % 8, halved as above. A vector of which less than 10^-5 is
// left depends on the others as far as float32 shows: it becomes zero, as do those that are not finite. Returns these,
// bit k for vector k: their Q needs a new start.
std::uint32_t orthonormalise(std::int64_t n, std::int32_t rank, std::byte* vectors);

namespace ref {

// The meaning of the functions above, one element at a time.
void low_rank_project(const LowRank& shape, const Feedback& arrays, const std::byte* q, std::byte* p);
void low_rank_project_back(const LowRank& shape, const Feedback& arrays, const std::byte* p, std::byte* q);
void low_rank_rebuild(const LowRank& shape, const Feedback& arrays, const std::byte* p, const std::byte* q,
                      std::byte* out);

}  // namespace ref
}  // namespace sirtaki::kernels
