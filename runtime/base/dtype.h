// Element types. Numbers are part of the C ABI and the wire format: append only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sirtaki {

enum class DType : std::uint8_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF16 = 6,
  kBF16 = 7,
  kF32 = 8,
  kF64 = 9,
  kBool = 10,
};
inline constexpr int kDTypeCount = 11;

std::size_t dtype_size(DType dtype);       // bytes an element
std::string_view dtype_name(DType dtype);  // "float32", "bfloat16", ...
std::optional<DType> dtype_from_wire(std::uint8_t value);
bool dtype_is_floating(DType dtype);

}  // namespace sirtaki
