// Codec twobit: every element travels as the nearest of +t, -t and nothing; t, a power of two, follows the mean
// magnitude.
//
// Where ranks agree on t, codes are counted on their way (compression/counted_codes.h).
// Method: kernels/twobit/twobit.h, with the threshold of Hylo (Hybrid Layer-Based Optimization to Reduce Communication
// in Distributed Deep Learning): a factor times the mean magnitude of the tensor. What is beyond it travels as about
// twice of it, its own mean where magnitudes fall off exponentially.
#pragma once

#include "compression/counted_codes.h"
#include "compression/payload_codec.h"

namespace sirtaki::compression {

class Twobit final : public PayloadCodec {
 public:
  using PayloadCodec::PayloadCodec;

  // Elements with a t of their own in the payload: an int8 exponent, then their planes.
  static constexpr std::int64_t kBlock = CountedCodes::kBlock;

  Status check(Params params, const Shape& shape) const override;
  bool supports(ReductionKind reduction) const override {
    return reduction == ReductionKind::kGather || reduction == ReductionKind::kScatter ||
           reduction == ReductionKind::kCounts;
  }
  std::int64_t stripe(Params params, const Shape& shape, int ranks) const override;
  std::size_t payload_bytes(Params params, const Shape& shape, std::int64_t numel) const override;
  std::unique_ptr<Coder> open(Params params, const Shape& shape) const override;
};

}  // namespace sirtaki::compression
