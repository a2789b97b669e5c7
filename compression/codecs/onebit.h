// Codec onebit: the sign of every element, and a power of two as the mean magnitude of each block.
//
// Method: kernels/onebit/onebit.h.
#pragma once

#include "compression/payload_codec.h"

namespace sirtaki::compression {

class Onebit final : public PayloadCodec {
 public:
  using PayloadCodec::PayloadCodec;

  Status check(Params params, const Shape& shape) const override;
  bool supports(ReductionKind reduction) const override {
    return reduction == ReductionKind::kGather || reduction == ReductionKind::kScatter;
  }
  std::int64_t stripe(Params params, const Shape& shape, int ranks) const override;
  std::size_t payload_bytes(Params params, const Shape& shape, std::int64_t numel) const override;
  std::unique_ptr<Coder> open(Params params, const Shape& shape) const override;
};

}  // namespace sirtaki::compression
