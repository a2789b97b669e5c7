// LowRankFactors: the matrix of one tensor as a product of two thin ones, P and Q, with the state from step to step.
//
// Used by codec powersgd, where each rank has factors of its own, and by the reduction algorithm in which ranks reduce
// the factors. In the latter, a step is: project(); the sum of P over all ranks; back(); the mean of Q over all ranks;
// rebuild(). Ranks then begin together and without earlier state, since their Q have to be the same.
// Q starts from the Q of the last step (warm start), or from pseudo-random numbers that are the same on all ranks.
// Vectors that depend linearly on others are replaced by such numbers, too.
// Owned by the coder. Threads: one at a time. Has no notion of a network. Method: kernels/low_rank/low_rank.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compression/coder.h"
#include "kernels/low_rank/low_rank.h"

namespace sirtaki::compression {

// Returns the matrix of a tensor; shape.rows divides shape.numel. The rank is at most the shorter side.
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

  // Computes P of gradient plus residual.
  void project(const kernels::Feedback& whole, std::byte* p);
  // Makes P orthonormal, with equal results for equal P; then computes Q of gradient plus residual.
  void back(const kernels::Feedback& whole, std::byte* p, std::byte* q);
  // Computes out = P Q' (unless null) and the residual, rounded. Keeps Q for the next step.
  void rebuild(const kernels::Feedback& whole, const std::byte* p, const std::byte* q, std::byte* out);

  // Returns Q and the count of its restarts; empty before the first step. If factors are reduced, it is the same on all
  // ranks.
  std::vector<std::byte> state() const;
  // Continues with the state of factors of the same shape; ignores any other.
  void restore(ConstBytes state);

 private:
  void start(std::int32_t vector);

  const kernels::LowRank shape_;
  const bool warm_start_;
  std::vector<float> q_;
  std::uint32_t fresh_;  // bits of the vectors of Q to initialise again
  std::uint64_t starts_ = 0;
};

}  // namespace sirtaki::compression
