// The momentum that a coder keeps of its own tensor, where a decision wants momentum correction.
//
// For: coders that send few elements. Owned by: the coder. Threads: one at a time.
// Method: kernels/momentum_correction/momentum_correction.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compression/coder.h"
#include "compression/payload_codec.h"
#include "kernels/momentum_correction/momentum_correction.h"

namespace sirtaki::compression {

class CodedMomentum {
 public:
  // Of parameters kMomentum and kNesterov; zero at first.
  CodedMomentum(Params params, std::int64_t numel);

  bool on() const { return how_.factor != 0; }

  // What is to be compressed: steps in place of the gradient, which stay until the next call; as it is when this is
  // off.
  kernels::Feedback step(const Piece& piece, const kernels::Feedback& arrays);

  // Of elements from `offset` on: the coder clears what it sent of a part of them. Only when on.
  std::byte* at(std::int64_t offset);

  // Of every element; empty: all zero.
  const std::vector<float>& values() const { return momentum_; }
  // Leaves all as it is unless this is on, and the values are of as many elements.
  void restore(std::vector<float> values);

 private:
  const kernels::Momentum how_;
  const std::int64_t numel_;
  std::vector<float> momentum_;
  std::vector<float> step_;
};

}  // namespace sirtaki::compression
