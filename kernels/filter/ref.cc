#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/filter/filter.h"
#include "kernels/half/sent.h"

namespace sirtaki::kernels::ref {
namespace {

using Float = Plain<float>;
using Id = Plain<std::uint16_t>;

float mean_magnitude(std::span<const float> values) {
  double sum = 0;
  for (std::size_t first = 0; first < values.size(); first += 1024) {
    float lanes[16] = {};
    for (std::size_t i = first; i < std::min(first + 1024, values.size()); ++i) {
      lanes[i % 16] += std::fabs(values[i]);
    }
    for (const float lane : lanes) {
      sum += static_cast<double>(lane);
    }
  }
  return canonical(static_cast<float>(sum / static_cast<double>(values.size())));
}

float send_as(DType dtype, float value, std::byte* to, bool& finite) {
  const Sent sent = dtype == DType::kF32   ? send<Plain<float>>(value, to)
                    : dtype == DType::kF16 ? send<F16>(value, to)
                                           : send<BF16>(value, to);
  finite = finite && sent.finite;
  return sent.left;
}

}  // namespace

void filter_norms(const FilterShape& shape, const Feedback& arrays, std::byte* norms) {
  const auto size = static_cast<std::size_t>(shape.size);
  for (std::size_t f = 0; f < static_cast<std::size_t>(shape.filters); ++f) {
    std::vector<float> a(size);
    for (std::size_t i = 0; i < size; ++i) {
      a[i] = element(arrays, f * size + i);
      if (arrays.left != nullptr) {
        Float::store(a[i], arrays.left + (f * size + i) * sizeof(float));
      }
    }
    Float::store(mean_magnitude(a), norms + f * sizeof(float));
  }
}

bool filter_gather(const FilterShape& shape, const FilterIds& chosen, FilterGather how, std::byte* values,
                   std::byte* sent) {
  const auto size = static_cast<std::size_t>(shape.size);
  bool finite = true;
  for (std::size_t c = 0; c < static_cast<std::size_t>(chosen.count); ++c) {
    const std::size_t filter = Id::load(chosen.ids + c * Id::kSize);
    for (std::size_t i = 0; i < size; ++i) {
      std::byte* const at = values + (filter * size + i) * sizeof(float);
      const float left = send_as(how.value, Float::load(at), sent + (c * size + i) * dtype_size(how.value), finite);
      if (how.take_out) {
        Float::store(left, at);
      }
    }
  }
  return finite;
}

}  // namespace sirtaki::kernels::ref
