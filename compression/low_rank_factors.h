// LowRankFactors: one tensor's matrix as a product of two thin ones, step by step, with what it remembers of the last.
//
// For: codec powersgd, each rank with factors of its own; and the reduction in which ranks reduce the factors. Owned
// by: the coder. Threads: one at a time. Knows no network. Method: kernels/low_rank/low_rank.h. Q begins with the last
// step's Q (warm start), or with numbers that look random and are the same on all ranks, as do vectors that depended on
// others. Where factors are reduced, ranks begin together, with none of the memory of before: their Q have to be the
// same. A step: project(); the sum of P over all ranks; back(); the mean of Q over all ranks; rebuild().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compression/coder.h"
#include "kernels/low_rank/low_rank.h"

namespace sirtaki::compression {

// The matrix of a tensor, of which shape.rows divides shape.numel; the rank is at most the shorter side.
kernels::LowRank matrix_of(const Shape& shape, std::int64_t rank);
inline std::size_t p_bytes_of(const kernels::LowRank& matrix) {
  return static_cast<std::size_t>(matrix.rows * matrix.rank) * sizeof(float);
}
inline std::size_t q_bytes_of(const kernels::LowRank& matrix) {
  return static_cast<std::size_t>(matrix.cols * matrix.rank) * sizeof(float);
}

class LowRankFactors {
 public:
  LowRankFactors(const Shape& shape, std::int64_t rank, bool warm_start);

  const kernels::LowRank& shape() const { return shape_; }
  std::size_t p_bytes() const { return p_bytes_of(shape_); }
  std::size_t q_bytes() const { return q_bytes_of(shape_); }

  // P of gradient plus residual.
  void project(const kernels::Feedback& whole, std::byte* p);
  // Makes P orthonormal, the same where P is; then Q of gradient plus residual.
  void back(const kernels::Feedback& whole, std::byte* p, std::byte* q);
  // out = P Q' (null: not wanted), and what is left, rounded. Takes Q for the next step.
  void rebuild(const kernels::Feedback& whole, const std::byte* p, const std::byte* q, std::byte* out);

  // Q and how far its starts are; empty: no step was made. Where factors are reduced it is the same on all ranks.
  std::vector<std::byte> state() const;
  // Of factors of the same shape; leaves all as it is where it is something else.
  void restore(ConstBytes state);

 private:
  void start(std::int32_t vector);

  const kernels::LowRank shape_;
  const bool warm_start_;
  std::vector<float> q_;
  std::uint32_t fresh_;  // vectors of Q to start anew
  std::uint64_t starts_ = 0;
};

}  // namespace sirtaki::compression
