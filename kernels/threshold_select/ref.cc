#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "kernels/threshold_select/threshold_select.h"
#include "kernels/threshold_select/writer.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels {

std::size_t threshold_max_bytes(const ThresholdSelect& how, std::int64_t n) {
  SRT_CHECK(how.threshold > 0 && how.capacity >= 0);
  return sparse_bytes(how.value, n, std::min(how.capacity, n));
}

namespace ref {
namespace {

using Float = Plain<float>;

std::uint32_t magnitude(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU;
}

}  // namespace

Selected threshold_select(const ThresholdSelect& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  std::vector<float> a(static_cast<std::size_t>(n));
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float gradient = Float::load(arrays.gradient + i * sizeof(float));
    a[i] = arrays.residual == nullptr ? gradient : gradient + Float::load(arrays.residual + i * sizeof(float));
    a[i] = canonical(a[i]);
    if (magnitude(a[i]) >= magnitude(how.threshold)) {
      chosen.push_back(i);
    }
  }
  const auto wanted = static_cast<std::int64_t>(chosen.size());
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&a](std::size_t left, std::size_t right) { return magnitude(a[left]) > magnitude(a[right]); });
  chosen.resize(static_cast<std::size_t>(std::min(wanted, how.capacity)));
  std::sort(chosen.begin(), chosen.end());
  SparseWriter writer(how.value, n, static_cast<std::size_t>(std::min(how.capacity, n)), payload);
  for (const std::size_t i : chosen) {
    a[i] = writer.put(i, a[i]);
  }
  writer.finish();
  if (arrays.left != nullptr && n > 0) {
    std::memcpy(arrays.left, a.data(), a.size() * sizeof(float));
  }
  return {static_cast<std::int64_t>(chosen.size()), wanted, writer.finite()};
}

}  // namespace ref
}  // namespace sirtaki::kernels
