#include <cstring>
#include <vector>

#include "kernels/sparse_sum/payload.h"

namespace sirtaki::kernels::ref {

void sparse_sum(DType value, std::int64_t n, std::span<const SparsePayload> payloads, std::byte* out) {
  std::vector<float> sum(static_cast<std::size_t>(n), 0.0F);
  for (const SparsePayload& payload : payloads) {
    std::vector<float> dense(sum.size(), 0.0F);
    const std::byte* values = payload.data + sparse_values_at(n);
    const std::byte* offsets = payload.data + sparse_offsets_at(value, n, static_cast<std::size_t>(payload.entries));
    with_value_type(value, [&]<class Value>() {
      for_each_sparse_tile(sum.size(), payload.data, [&](const SparseTile& tile) {
        for (std::size_t e = tile.first; e < tile.first + tile.count; ++e) {
          dense[tile.begin + SparseOffset::load(offsets + e * SparseOffset::kSize)] =
              Value::load(values + e * Value::kSize);
        }
      });
    });
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = canonical(sum[i] + dense[i]);
    }
  }
  if (!sum.empty()) {
    std::memcpy(out, sum.data(), sum.size() * sizeof(float));
  }
}

}  // namespace sirtaki::kernels::ref
