#include "compression/codecs/cast.h"

#include "compression/codecs/factories.h"

namespace sirtaki::compression {

std::size_t Cast::payload_bytes(DType /*dtype*/, std::int64_t n) const {
  return static_cast<std::size_t>(n) * dtype_size(wire_);
}

void Cast::encode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const {
  kernels::cast(dtype, in, wire_, out, n);
}

// Every bit pattern of the right size is a payload.
Status Cast::decode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const {
  kernels::cast(wire_, in, dtype, out, n);
  return {};
}

std::unique_ptr<const Codec> make_fp16(CodecInfo info) {
  return std::make_unique<Cast>(info, DType::kF16);
}

std::unique_ptr<const Codec> make_bf16(CodecInfo info) {
  return std::make_unique<Cast>(info, DType::kBF16);
}

}  // namespace sirtaki::compression
