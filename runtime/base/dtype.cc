#include "runtime/base/dtype.h"

#include <array>

namespace sirtaki {
namespace {

struct Row {
  std::string_view name;
  std::size_t size;
  bool floating;
};

constexpr std::array<Row, kDTypeCount> kRows = {{
    {"uint8", 1, false},
    {"int8", 1, false},
    {"uint16", 2, false},
    {"int16", 2, false},
    {"int32", 4, false},
    {"int64", 8, false},
    {"float16", 2, true},
    {"bfloat16", 2, true},
    {"float32", 4, true},
    {"float64", 8, true},
    {"bool", 1, false},
}};

const Row& row(DType dtype) {
  return kRows.at(static_cast<std::size_t>(dtype));
}

}  // namespace

std::size_t dtype_size(DType dtype) {
  return row(dtype).size;
}
std::string_view dtype_name(DType dtype) {
  return row(dtype).name;
}
bool dtype_is_floating(DType dtype) {
  return row(dtype).floating;
}

std::optional<DType> dtype_from_wire(std::uint8_t value) {
  if (value >= kDTypeCount) {
    return std::nullopt;
  }
  return static_cast<DType>(value);
}

}  // namespace sirtaki
