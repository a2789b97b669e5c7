#include "compression/codec.h"

#include <cstring>
#include <string>

#include "runtime/base/check.h"

namespace sirtaki::compression {
namespace {

std::int64_t count_elements(DType dtype, std::size_t bytes) {
  SRT_CHECK(bytes % dtype_size(dtype) == 0);
  return static_cast<std::int64_t>(bytes / dtype_size(dtype));
}

}  // namespace

std::size_t Codec::encoded_bytes(DType dtype, std::int64_t n) const {
  SRT_CHECK(n >= 0);
  return handles(dtype) ? payload_bytes(dtype, n) : static_cast<std::size_t>(n) * dtype_size(dtype);
}

void Codec::encode(DType dtype, ConstBytes in, Bytes out) const {
  const std::int64_t n = count_elements(dtype, in.size());
  SRT_CHECK(out.size() == encoded_bytes(dtype, n));
  if (n == 0) {
    return;
  }
  if (handles(dtype)) {
    encode_elements(dtype, in.data(), n, out.data());
  } else {
    std::memcpy(out.data(), in.data(), in.size());
  }
}

Status Codec::decode(DType dtype, ConstBytes in, Bytes out) const {
  const std::int64_t n = count_elements(dtype, out.size());
  if (in.size() != encoded_bytes(dtype, n)) {
    std::string text = "a payload of codec ";
    text.append(name()).append(" has ").append(std::to_string(in.size()));
    text.append(" bytes, but ").append(std::to_string(n)).append(" elements of ").append(dtype_name(dtype));
    return corrupt(text.append(" take ").append(std::to_string(encoded_bytes(dtype, n))));
  }
  if (n == 0) {
    return {};
  }
  if (handles(dtype)) {
    return decode_elements(dtype, in.data(), n, out.data());
  }
  std::memcpy(out.data(), in.data(), in.size());
  return {};
}

}  // namespace sirtaki::compression
