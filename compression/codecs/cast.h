// Codecs that cast: float32 and float64 are sent and summed in a shorter floating dtype.
#pragma once

#include "compression/codec.h"
#include "kernels/cast/cast.h"

namespace sirtaki::compression {

class Cast final : public Codec {
 public:
  // `wire`: float16 or bfloat16.
  Cast(CodecInfo info, DType wire) : Codec(info), wire_(wire) {}

  bool handles(DType dtype) const override { return kernels::can_cast(dtype, wire_); }
  bool summable() const override { return true; }

 private:
  DType wire_of(DType /*dtype*/) const override { return wire_; }
  std::size_t payload_bytes(DType dtype, std::int64_t n) const override;
  void encode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const override;
  Status decode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const override;

  DType wire_;
};

}  // namespace sirtaki::compression
