// Codec powersgd: a matrix travels as two thin factors.
//
// A payload: P, then Q, float32, of the sending rank's own matrix; the sum of payloads is that of their products. What
// is left is rounded as a sum of float32 is.
// Method: compression/low_rank_factors.h. Where factors are reduced on their way, Coder::factors() has the steps.
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
