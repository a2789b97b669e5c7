#include <algorithm>
#include <cmath>
#include <numeric>
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

float load_as(DType dtype, const std::byte* from) {
  return dtype == DType::kF32 ? Float::load(from) : dtype == DType::kF16 ? F16::load(from) : BF16::load(from);
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

void filter_select(std::int64_t filters, std::int64_t keep, const std::byte* norms, std::byte* ids) {
  std::vector<std::size_t> order(static_cast<std::size_t>(filters));
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [norms](std::size_t f) { return magnitude_bits(canonical(Float::load(norms + f * sizeof(float)))); };
  std::stable_sort(order.begin(), order.end(), [&key](std::size_t a, std::size_t b) { return key(a) > key(b); });
  order.resize(static_cast<std::size_t>(keep));
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    Id::store(static_cast<std::uint16_t>(order[i]), ids + i * Id::kSize);
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

void filter_sum(const FilterShape& shape, DType value, std::span<const FilterPart> parts, std::byte* out) {
  const auto size = static_cast<std::size_t>(shape.size);
  std::vector<float> sum(static_cast<std::size_t>(shape.filters) * size, 0.0F);
  for (const FilterPart& part : parts) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(part.chosen.count); ++c) {
      const std::size_t filter = Id::load(part.chosen.ids + c * Id::kSize);
      for (std::size_t i = 0; i < size; ++i) {
        float& here = sum[filter * size + i];
        here = canonical(here + load_as(value, part.sent + (c * size + i) * dtype_size(value)));
      }
    }
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    Float::store(sum[i], out + i * sizeof(float));
  }
}

}  // namespace sirtaki::kernels::ref
