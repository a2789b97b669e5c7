// Codecs int8, int4, fp8_e4m3 and fp8_e5m2: 8 or 4 bits an element, a power of two as the scale of each block.
//
// Method: kernels/scaled_cast/scaled_cast.h.
#pragma once

#include "compression/payload_codec.h"
#include "kernels/scaled_cast/scaled_cast.h"

namespace sirtaki::compression {

class Scaled final : public PayloadCodec {
 public:
  Scaled(PayloadCodecInfo info, kernels::ScaledCode code) : PayloadCodec(info), code_(code) {}

  Status check(Params params, const Shape& shape) const override;
  bool supports(ReductionKind reduction) const override {
    return reduction == ReductionKind::kGather || reduction == ReductionKind::kScatter;
  }
  std::int64_t stripe(Params params, const Shape& shape, int ranks) const override;
  std::size_t payload_bytes(Params params, const Shape& shape, std::int64_t numel) const override;
  std::unique_ptr<Coder> open(Params params, const Shape& shape) const override;

 private:
  kernels::ScaledCast cast(Params params) const;

  kernels::ScaledCode code_;
};

}  // namespace sirtaki::compression
