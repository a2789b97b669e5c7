#include "compression/codecs/none.h"

#include <cstring>

#include "compression/codecs/factories.h"

namespace sirtaki::compression {

std::size_t None::payload_bytes(DType dtype, std::int64_t n) const {
  return static_cast<std::size_t>(n) * dtype_size(dtype);
}

void None::encode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const {
  std::memcpy(out, in, payload_bytes(dtype, n));
}

Status None::decode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const {
  std::memcpy(out, in, payload_bytes(dtype, n));
  return {};
}

std::unique_ptr<const Codec> make_none(CodecInfo info) {
  return std::make_unique<None>(info);
}

}  // namespace sirtaki::compression
