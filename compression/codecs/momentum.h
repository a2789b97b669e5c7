// The momentum that a coder keeps for its tensor if the decision asks for momentum correction.
//
// Used by coders that send few elements. Owned by the coder. Threads: one at a time. Method:
// kernels/momentum_correction/momentum_correction.h.
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
  // Takes factor and kind from parameters kMomentum and kNesterov; the momentum starts at zero.
  CodedMomentum(Params params, std::int64_t numel);

  bool on() const { return how_.factor != 0; }

  // Returns the arrays to compress: with steps in place of the gradient, valid until the next call; unchanged if off.
  kernels::Feedback step(const Piece& piece, const kernels::Feedback& arrays);

  // Returns the momentum of elements from `offset` on, so that the coder can clear that of sent elements. Requires
  // on().
  std::byte* at(std::int64_t offset);

  // Returns the momentum of every element; empty if all are zero.
  const std::vector<float>& values() const { return momentum_; }
  // Replaces the momentum; ignored if this is off or the number of elements differs.
  void restore(std::vector<float> values);

 private:
  const kernels::Momentum how_;
  const std::int64_t numel_;
  std::vector<float> momentum_;
  std::vector<float> step_;
};

}  // namespace sirtaki::compression
