#include "compression/codecs/cast.h"

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

}  // namespace sirtaki::compression
