// Codec threshold_sparse: sends the elements of a whole tensor that reach a threshold, about a given share of them.
//
// A payload: the number of its entries, 32 bits, then a sparse payload (kernels/sparse_sum/sparse_sum.h), then zeros up
// to the size of 5/4 of the wanted entries, so that its size is known in advance.
// Methods: kernels/threshold_select/threshold_select.h; the threshold is periodically the exact k-th magnitude and
// follows the number of entries in between (Li and Hoefler, Near-Optimal Sparse Allreduce for Distributed Deep
// Learning, 2022). Each rank has its own. Momentum correction of momentum.h.
#pragma once

#include "compression/payload_codec.h"

namespace sirtaki::compression {

class ThresholdSparse final : public PayloadCodec {
 public:
  using PayloadCodec::PayloadCodec;

  Status check(Params params, const Shape& shape) const override;
  bool supports(ReductionKind reduction) const override {
    return reduction == ReductionKind::kGather || reduction == ReductionKind::kRing;
  }
  std::size_t payload_bytes(Params params, const Shape& shape, std::int64_t numel) const override;
  std::unique_ptr<Coder> open(Params params, const Shape& shape) const override;
};

}  // namespace sirtaki::compression
