// Codec twobit: sends every element as the nearest of +t, -t and 0; t, a power of two, follows the mean magnitude.
//
// If ranks agree on t, codes are summed as integers on their way (compression/counted_codes.h).
// Method: kernels/twobit/twobit.h, with the threshold of Hylo (Hybrid Layer-Based Optimization to Reduce Communication
// in Distributed Deep Learning): a factor times the mean magnitude of the tensor. Elements beyond it are sent as about
// twice the threshold, which is their mean if magnitudes fall off exponentially.
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
