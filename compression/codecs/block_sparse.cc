#include "compression/codecs/block_sparse.h"

#include <algorithm>
#include <vector>

#include "compression/codecs/factories.h"
#include "compression/params.h"
#include "runtime/base/check.h"

namespace sirtaki::compression {
namespace {

constexpr std::int64_t kMostBlocks = BlockSelection::kMostBlocks;
constexpr std::int64_t kLargestBlock = std::int64_t{1} << 24;

std::size_t payload_of(const BlockSelection& selection) {
  return selection.id_bytes() + selection.value_bytes();
}

// Each rank chooses blocks of its own.
class BlockCoder final : public Coder {
 public:
  explicit BlockCoder(const BlockSelection& selection) : selection_(selection) {}

  std::size_t payload_bytes(std::int64_t numel) const override {
    SRT_CHECK(numel == selection_.numel());
    return payload_of(selection_);
  }

  void encode(const Piece& piece, const kernels::Feedback& arrays, Bytes payload) override {
    SRT_CHECK(piece.numel == selection_.numel());
    norms_.resize(static_cast<std::size_t>(selection_.blocks()));
    std::byte* const norms = std::as_writable_bytes(std::span(norms_)).data();
    selection_.norms(arrays, norms);
    selection_.select(norms, payload.data());
    selection_.gather(payload.data(), arrays, payload.data() + selection_.id_bytes());
  }

  Status check(const Piece& /*piece*/, ConstBytes payload) const override {
    return selection_.valid(payload.data()) ? Status() : impossible_payload("the number of a block");
  }

  void sum(const Piece& /*piece*/, std::span<const std::byte* const> payloads, std::byte* out) const override {
    std::vector<BlockSelection::Part> parts(payloads.size());
    std::transform(payloads.begin(), payloads.end(), parts.begin(), [this](const std::byte* payload) {
      return BlockSelection::Part{payload, payload + selection_.id_bytes()};
    });
    selection_.sum(parts, out);
  }

 private:
  const BlockSelection selection_;
  std::vector<float> norms_;
};

Status impossible_blocks(std::string_view codec, const Shape& shape, std::int64_t blocks) {
  return invalid_argument("codec " + std::string(codec) + ": a tensor of " + std::to_string(shape.numel) +
                          " elements has " + std::to_string(blocks) + " blocks; allowed are 1 to " +
                          std::to_string(kMostBlocks) + ", and filters must be of equal size");
}

}  // namespace

std::size_t BlockSparse::payload_bytes(Params params, const Shape& shape, std::int64_t numel) const {
  SRT_CHECK(numel == shape.numel);
  return payload_of(*selection(params, shape));
}

std::unique_ptr<Coder> BlockSparse::open(Params params, const Shape& shape) const {
  return std::make_unique<BlockCoder>(*selection(params, shape));
}

Status KernelSparse::check(Params params, const Shape& shape) const {
  if (shape.rows < 1 || shape.rows > kMostBlocks || shape.numel % shape.rows != 0) {
    return impossible_blocks(name(), shape, shape.rows);
  }
  return check_params(name(), params, {{"feedback", 0, 1}, {"block", 0, 0}, {"filters", 1, shape.rows}, kValueRange});
}

std::optional<BlockSelection> KernelSparse::selection(Params params, const Shape& shape) const {
  return BlockSelection(shape.numel, shape.numel / shape.rows, params[params::kFilters], value_dtype(params));
}

Status BlockTopk::check(Params params, const Shape& shape) const {
  Status status =
      check_params(name(), params, {{"feedback", 0, 1}, {"block", 1, kLargestBlock}, {"blocks", 1, kMostBlocks}});
  if (!status.ok()) {
    return status;
  }
  const std::int64_t blocks = (shape.numel + params[params::kBlock] - 1) / params[params::kBlock];
  if (blocks > kMostBlocks || shape.numel < 1) {
    return impossible_blocks(name(), shape, blocks);
  }
  return check_params(name(), params, {{"feedback", 0, 1}, {"block", 1, kLargestBlock}, {"blocks", 1, blocks}});
}

std::optional<BlockSelection> BlockTopk::selection(Params params, const Shape& shape) const {
  return BlockSelection(shape.numel, params[params::kBlock], params[params::kFilters], DType::kF32);
}

std::unique_ptr<const PayloadCodec> make_kernel_sparse(PayloadCodecInfo info) {
  return std::make_unique<KernelSparse>(info);
}

std::unique_ptr<const PayloadCodec> make_block_topk(PayloadCodecInfo info) {
  return std::make_unique<BlockTopk>(info);
}

}  // namespace sirtaki::compression
