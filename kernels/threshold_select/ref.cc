#include <algorithm>
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
Selected threshold_select(const ThresholdSelect& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  std::vector<float> a(static_cast<std::size_t>(n));
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = element(arrays, i);
    if (magnitude_bits(a[i]) >= magnitude_bits(how.threshold)) {
      chosen.push_back(i);
    }
  }
  const auto wanted = static_cast<std::int64_t>(chosen.size());
  std::stable_sort(chosen.begin(), chosen.end(), [&a](std::size_t left, std::size_t right) {
    return magnitude_bits(a[left]) > magnitude_bits(a[right]);
  });
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
