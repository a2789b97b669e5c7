// Codec powersgd: sends a matrix as two thin factors.
//
// A payload: P, then Q, float32, of the matrix of the sending rank; the sum of payloads is the sum of their products.
// The residual is rounded like a sum of float32.
// Method: compression/low_rank_factors.h. Coder::factors() has the steps for reducing the factors themselves.
#pragma once

#include "compression/payload_codec.h"

namespace sirtaki::compression {

class PowerSgd final : public PayloadCodec {
 public:
  using PayloadCodec::PayloadCodec;

  Status check(Params params, const Shape& shape) const override;
  bool supports(ReductionKind reduction) const override {
    return reduction == ReductionKind::kGather || reduction == ReductionKind::kLowRank;
  }
  std::size_t payload_bytes(Params params, const Shape& shape, std::int64_t numel) const override;
  std::unique_ptr<Coder> open(Params params, const Shape& shape) const override;
};

}  // namespace sirtaki::compression
