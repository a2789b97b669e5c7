// Element types: the rows of dtypes.inc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sirtaki {

enum class DType : std::uint8_t {
#define SRT_DTYPE(Id, number, name, bytes, floating) k##Id = (number),
#include "runtime/base/dtypes.inc"
#undef SRT_DTYPE
};

inline constexpr int kDTypeCount = 0
#define SRT_DTYPE(Id, number, name, bytes, floating) +1
#include "runtime/base/dtypes.inc"
#undef SRT_DTYPE
    ;

std::size_t dtype_size(DType dtype);       // bytes per element
std::string_view dtype_name(DType dtype);  // "float32", "bfloat16", ...
std::optional<DType> dtype_from_wire(std::uint8_t value);
bool dtype_is_floating(DType dtype);

}  // namespace sirtaki
