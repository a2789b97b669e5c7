// PayloadCodec: a codec of which less than the whole gradient travels; error feedback keeps the rest.
//
// For: the engine, which opens a Coder for every tensor that a plan gives to the codec. Owned by: the catalog
// (catalog.h); immutable, so any thread may use one. Codecs that only cast and can be summed on the way are Codec
// (codec.h). float32 only: other tensors travel as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "compression/block_selection.h"
#include "compression/coder.h"
#include "runtime/base/codec_id.h"
#include "runtime/base/status.h"

namespace sirtaki::compression {

// A decision's parameters (runtime/base/codec_id.h says which is which).
using Params = std::span<const std::int64_t>;

struct PayloadCodecInfo {
  CodecId id;
  std::string_view name;
  std::string_view help;  // one line for a person
};

class PayloadCodec {
 public:
  explicit PayloadCodec(PayloadCodecInfo info) : info_(info) {}
  PayloadCodec(const PayloadCodec&) = delete;
  PayloadCodec& operator=(const PayloadCodec&) = delete;
  virtual ~PayloadCodec() = default;

  CodecId id() const { return info_.id; }
  std::string_view name() const { return info_.name; }
  std::string_view help() const { return info_.help; }

  // kInvalidArgument, naming the parameter, its value and what is allowed. What follows needs parameters that pass.
  virtual Status check(Params params, const Shape& shape) const = 0;

  virtual bool supports(ReductionKind reduction) const = 0;

  // Elements of a stripe; borders of pieces are multiples of it. shape.numel: the tensor travels whole. A function of
  // its arguments alone, so owners of stripes do not change with the plan.
  virtual std::int64_t stripe(Params /*params*/, const Shape& shape, int /*ranks*/) const { return shape.numel; }

  // Exact size of the payload of a piece of that many elements, once density has warmed up.
  virtual std::size_t payload_bytes(Params params, const Shape& shape, std::int64_t numel) const = 0;

  virtual std::unique_ptr<Coder> open(Params params, const Shape& shape) const = 0;
  // For what is sent on as the owner of stripes: payloads of the same kind.
  virtual std::unique_ptr<Coder> open_owner(Params params, const Shape& shape) const { return open(params, shape); }

  // What a reduction needs in which all ranks send the same blocks; of codecs that send blocks.
  virtual std::optional<BlockSelection> selection(Params /*params*/, const Shape& /*shape*/) const { return {}; }

 private:
  PayloadCodecInfo info_;
};

// For codecs that work block by block: a stripe is some whole blocks, small enough that every rank owns some of a
// tensor of a few thousand elements, large enough that a stripe is worth a call: 1,024 to 16,384 elements, or a block.
std::int64_t stripe_of_blocks(std::int64_t block, const Shape& shape, int ranks);

}  // namespace sirtaki::compression
