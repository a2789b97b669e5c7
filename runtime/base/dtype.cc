#include "runtime/base/dtype.h"

#include <array>

namespace sirtaki {
namespace {

struct Row {
  int number;
  std::string_view name;
  std::size_t size;
  bool floating;
};

constexpr std::array<Row, kDTypeCount> kRows = {{
#define SRT_DTYPE(Id, number, name, bytes, floating) {number, name, bytes, floating},
#include "runtime/base/dtypes.inc"
#undef SRT_DTYPE
}};

constexpr bool rows_are_numbered() {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kRows[static_cast<std::size_t>(i)].number != i) {
      return false;
    }
  }
  return true;
}
static_assert(rows_are_numbered(), "numbers in dtypes.inc ascend from 0 without gaps");

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
