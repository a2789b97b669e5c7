// LowRankFactors: one tensor's matrix as a product of two thin ones, step by step, with what it remembers of the last.
//
// For: codec powersgd, each rank with factors of its own; and the recipe in which ranks reduce the factors. Owned by:
// the coder. Threads: one at a time. Knows no network.
// Method: kernels/low_rank/low_rank.h. Q begins with the last step's Q (warm start), or with numbers that look random
// and are the same on all ranks, as do vectors that depended on others.
// Where factors are reduced, ranks begin together, with none of the memory of before: their Q have to be the same.
// A step: project(); the sum of P over all ranks; back(); the mean of Q over all ranks; rebuild().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compression/coder.h"
#include "kernels/low_rank/low_rank.h"

namespace sirtaki::compression {

class LowRankFactors {
 public:
  // shape.rows divides shape.numel. The rank is at most the shorter side.
  LowRankFactors(const Shape& shape, std::int64_t rank, bool warm_start);

  const kernels::LowRank& shape() const { return shape_; }
  std::size_t p_bytes() const { return static_cast<std::size_t>(shape_.rows * shape_.rank) * sizeof(float); }
  std::size_t q_bytes() const { return static_cast<std::size_t>(shape_.cols * shape_.rank) * sizeof(float); }

  // P of gradient plus residual.
  void project(const kernels::Feedback& whole, std::byte* p);
  // Makes P orthonormal, the same where P is; then Q of gradient plus residual.
  void back(const kernels::Feedback& whole, std::byte* p, std::byte* q);
  // out = P Q' (null: not wanted), and what is left, rounded. Takes Q for the next step.
  void rebuild(const kernels::Feedback& whole, const std::byte* p, const std::byte* q, std::byte* out);

 private:
  void start(std::int32_t vector);

  const kernels::LowRank shape_;
  const bool warm_start_;
  std::vector<float> q_;
  std::uint32_t fresh_;  // vectors of Q to start anew
  std::uint64_t starts_ = 0;
};

}  // namespace sirtaki::compression
