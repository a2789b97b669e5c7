// Codec "none": all elements are sent unchanged.
#pragma once

#include "compression/codec.h"

namespace sirtaki::compression {

class None final : public Codec {
 public:
  using Codec::Codec;

  bool handles(DType /*dtype*/) const override { return true; }
  bool summable() const override { return true; }

 private:
  DType wire_of(DType dtype) const override { return dtype; }
  std::size_t payload_bytes(DType dtype, std::int64_t n) const override;
  void encode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const override;
  Status decode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const override;
};

}  // namespace sirtaki::compression
