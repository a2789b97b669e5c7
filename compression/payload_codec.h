// PayloadCodec: a codec that sends less than the whole gradient. Error feedback keeps the residual, the part not sent.
//
// The engine opens a Coder for every tensor that a plan assigns to the codec. float32 only: other tensors are sent
// unchanged. Codecs that only cast, whose payloads can be summed in the network, are Codec (codec.h). Owned by the
// catalog (codecs/catalog.h); immutable, so any thread may use one.
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

// Parameters of a decision; runtime/base/codec_id.h lists them.
using Params = std::span<const std::int64_t>;

struct PayloadCodecInfo {
  CodecId id;
  std::string_view name;  // value of the option
};

class PayloadCodec {
 public:
  explicit PayloadCodec(PayloadCodecInfo info) : info_(info) {}
  PayloadCodec(const PayloadCodec&) = delete;
  PayloadCodec& operator=(const PayloadCodec&) = delete;
  virtual ~PayloadCodec() = default;

  CodecId id() const { return info_.id; }
  std::string_view name() const { return info_.name; }

  // Returns kInvalidArgument, naming the parameter, its value and the allowed range. The methods below require
  // parameters that pass.
  virtual Status check(Params params, const Shape& shape) const = 0;

  virtual bool supports(ReductionKind reduction) const = 0;

  // Returns the elements of a stripe; pieces begin at multiples of it. shape.numel: the tensor is sent whole. Depends
  // on the arguments alone, so owners of stripes do not change with the plan.
  virtual std::int64_t stripe(Params /*params*/, const Shape& shape, int /*ranks*/) const { return shape.numel; }

  // Returns the exact size of the payload of a piece of that many elements, after the density warm-up.
  virtual std::size_t payload_bytes(Params params, const Shape& shape, std::int64_t numel) const = 0;

  virtual std::unique_ptr<Coder> open(Params params, const Shape& shape) const = 0;
  // Opens the coder for sums of owned stripes, with payloads of the same kind.
  virtual std::unique_ptr<Coder> open_owner(Params params, const Shape& shape) const { return open(params, shape); }

  // Returns the selection for the reduction algorithm in which all ranks send the same blocks; only codecs that send
  // blocks have one.
  virtual std::optional<BlockSelection> selection(Params /*params*/, const Shape& /*shape*/) const { return {}; }

 private:
  PayloadCodecInfo info_;
};

// Returns the stripe of codecs that work block by block: some whole blocks, small enough that every rank owns some of a
// tensor of a few thousand elements, large enough that a stripe is worth a call: 1,024 to 16,384 elements, or a block.
std::int64_t stripe_of_blocks(std::int64_t block, const Shape& shape, int ranks);

}  // namespace sirtaki::compression
