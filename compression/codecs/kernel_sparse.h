// Codec kernel_sparse: whole filters of a convolution, those with the largest mean magnitude.
//
// A payload: the chosen filters' numbers, 16 bits each, ascending; then their values, filter by filter.
// Method: kernels/filter/filter.h.
#pragma once

#include "compression/payload_codec.h"

namespace sirtaki::compression {

class KernelSparse final : public PayloadCodec {
 public:
  using PayloadCodec::PayloadCodec;

  Status check(Params params, const Shape& shape) const override;
  bool supports(Recipe recipe) const override { return recipe == Recipe::kGather; }
  std::int64_t stripe(Params params, const Shape& shape, int ranks) const override;
  std::size_t payload_bytes(Params params, const Shape& shape, std::int64_t numel) const override;
  std::unique_ptr<Coder> open(Params params, const Shape& shape) const override;
};

}  // namespace sirtaki::compression
