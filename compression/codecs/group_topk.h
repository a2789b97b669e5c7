// Codec group_topk: sends, of every group of consecutive elements, the few with the largest magnitude.
//
// Methods: kernels/group_topk/group_topk.h; momentum correction of momentum.h, which owners of stripes omit, because
// they sum steps.
#pragma once

#include "compression/payload_codec.h"

namespace sirtaki::compression {

class GroupTopk final : public PayloadCodec {
 public:
  using PayloadCodec::PayloadCodec;

  Status check(Params params, const Shape& shape) const override;
  bool supports(ReductionKind reduction) const override {
    return reduction == ReductionKind::kGather || reduction == ReductionKind::kScatter ||
           reduction == ReductionKind::kRing;
  }
  std::int64_t stripe(Params params, const Shape& shape, int ranks) const override;
  std::size_t payload_bytes(Params params, const Shape& shape, std::int64_t numel) const override;
  std::unique_ptr<Coder> open(Params params, const Shape& shape) const override;
  std::unique_ptr<Coder> open_owner(Params params, const Shape& shape) const override;
};

}  // namespace sirtaki::compression
