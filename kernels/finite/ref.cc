#include <cmath>

#include "kernels/finite/finite.h"
#include "kernels/half/elements.h"

namespace sirtaki::kernels::ref {
namespace {

template <class Element>
bool all(const std::byte* data, std::int64_t n) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    if (!std::isfinite(Element::load(data + i * Element::kSize))) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool all_finite(DType dtype, const std::byte* data, std::int64_t n) {
  switch (dtype) {
    case DType::kF16:
      return all<F16>(data, n);
    case DType::kBF16:
      return all<BF16>(data, n);
    case DType::kF32:
      return all<Plain<float>>(data, n);
    case DType::kF64:
      return all<Plain<double>>(data, n);
    default:
      return true;
  }
}

}  // namespace sirtaki::kernels::ref
