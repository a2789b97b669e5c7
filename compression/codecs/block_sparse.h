// Codecs that send whole blocks, those with the largest mean magnitude: kernel_sparse the filters of a convolution,
// block_topk blocks of any tensor.
//
// A payload: the ids of the chosen blocks, 16 bits each, ascending; then their values, block by block, a short one
// padded with zeros.
// Method: compression/block_selection.h.
#pragma once

#include "compression/payload_codec.h"

namespace sirtaki::compression {

class BlockSparse : public PayloadCodec {
 public:
  using PayloadCodec::PayloadCodec;

  bool supports(ReductionKind reduction) const override {
    return reduction == ReductionKind::kGather || reduction == ReductionKind::kShared;
  }
  std::size_t payload_bytes(Params params, const Shape& shape, std::int64_t numel) const override;
  std::unique_ptr<Coder> open(Params params, const Shape& shape) const override;
};

class KernelSparse final : public BlockSparse {
 public:
  using BlockSparse::BlockSparse;
  Status check(Params params, const Shape& shape) const override;
  std::optional<BlockSelection> selection(Params params, const Shape& shape) const override;
};

class BlockTopk final : public BlockSparse {
 public:
  using BlockSparse::BlockSparse;
  Status check(Params params, const Shape& shape) const override;
  std::optional<BlockSelection> selection(Params params, const Shape& shape) const override;
};

}  // namespace sirtaki::compression
