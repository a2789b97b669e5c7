#include "tests/unit/kernels/oracles.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "kernels/group_topk/payload.h"
#include "kernels/half/elements.h"
#include "kernels/sparse_sum/payload.h"

namespace sirtaki::kernels::ref {
namespace {

using Float = Plain<float>;
using Id = Plain<std::uint16_t>;

float load_as(DType dtype, const std::byte* from) {
  return dtype == DType::kF32 ? Float::load(from) : dtype == DType::kF16 ? F16::load(from) : BF16::load(from);
}

}  // namespace

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

void group_topk_sum(const GroupTopk& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out) {
  const auto entries = static_cast<std::size_t>(group_topk_entries(how, n));
  std::vector<float> sum(static_cast<std::size_t>(n), 0.0F);
  for (const std::byte* payload : payloads) {
    std::vector<float> dense(static_cast<std::size_t>(n), 0.0F);
    with_entry_types(how, [&]<class Value, class Offset>() {
      const PayloadReader<Value, Offset> reader(entries, payload);
      for (std::size_t e = 0; e < entries; ++e) {
        const auto group = e / static_cast<std::size_t>(how.keep);
        dense[group * static_cast<std::size_t>(how.group) + reader.offset(e)] = reader.value(e);
      }
    });
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = canonical(sum[i] + dense[i]);
    }
  }
  if (!sum.empty()) {
    std::memcpy(out, sum.data(), sum.size() * sizeof(float));
  }
}

KthMagnitude kth_magnitude(std::int64_t n, std::int64_t k, const std::byte* data) {
  std::vector<std::uint32_t> keys(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = magnitude_bits(canonical(Plain<float>::load(data + i * sizeof(float))));
  }
  std::sort(keys.begin(), keys.end(), std::greater<>());
  const std::uint32_t key = keys[static_cast<std::size_t>(k) - 1];
  return {key, std::find(keys.begin(), keys.end(), key) - keys.begin()};
}

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
