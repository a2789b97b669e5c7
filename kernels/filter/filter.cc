#include "kernels/filter/filter.h"

#include <algorithm>
#include <cstring>

#include "kernels/cast/cast.h"
#include "kernels/half/elements.h"
#include "kernels/kth_magnitude/kth_magnitude.h"
#include "kernels/reduce/reduce.h"
#include "runtime/base/check.h"

namespace sirtaki::kernels {
namespace {

using Id = ref::Plain<std::uint16_t>;

// Adds `values` to `out` in pieces that fit into the nearest cache.
void add_row(DType value, const std::byte* values, std::int64_t n, std::byte* out) {
  constexpr std::int64_t kPiece = 1024;
  alignas(64) std::byte wide[kPiece * sizeof(float)];
  for (std::int64_t i = 0; i < n; i += kPiece) {
    const std::int64_t count = std::min(kPiece, n - i);
    std::byte* const to = out + static_cast<std::size_t>(i) * sizeof(float);
    const std::byte* from = values + static_cast<std::size_t>(i) * dtype_size(value);
    if (value != DType::kF32) {
      cast(value, from, DType::kF32, wide, count);
      from = wide;
    }
    const std::byte* const terms[] = {to, from};
    reduce(ReduceOp::kSum, DType::kF32, terms, to, count);
  }
}

}  // namespace

// The keep-th largest norm decides; there are few filters, so a second scan costs nothing.
void filter_select(std::int64_t filters, std::int64_t keep, const std::byte* norms, std::byte* ids) {
  SRT_CHECK(filters <= 65536 && keep >= 0 && keep <= filters);
  if (keep == 0) {
    return;
  }
  const KthMagnitude last = kth_magnitude(filters, keep, norms);
  std::int64_t equal = keep - last.above;
  for (std::size_t f = 0; f < static_cast<std::size_t>(filters); ++f) {
    const std::uint32_t bits = ref::Plain<std::uint32_t>::load(norms + f * sizeof(float)) & 0x7FFFFFFFU;
    const std::uint32_t key = bits > 0x7F800000U ? 0x7FC00000U : bits;
    if (key > last.key || (key == last.key && equal > 0)) {
      equal -= key == last.key ? 1 : 0;
      Id::store(static_cast<std::uint16_t>(f), ids);
      ids += Id::kSize;
    }
  }
}

bool filter_ids_valid(std::int64_t filters, std::int64_t keep, const std::byte* ids) {
  std::int64_t least = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(keep); ++i) {
    const std::int64_t id = Id::load(ids + i * Id::kSize);
    if (id < least || id >= filters) {
      return false;
    }
    least = id + 1;
  }
  return true;
}

void filter_sum(const FilterShape& shape, DType value, std::span<const FilterPart> parts, std::byte* out) {
  const auto size = static_cast<std::size_t>(shape.size);
  const std::size_t all = static_cast<std::size_t>(shape.filters) * size * sizeof(float);
  if (all > 0) {
    std::memset(out, 0, all);
  }
  for (const FilterPart& part : parts) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(part.chosen.count); ++c) {
      const std::size_t filter = Id::load(part.chosen.ids + c * Id::kSize);
      add_row(value, part.sent + c * size * dtype_size(value), shape.size, out + filter * size * sizeof(float));
    }
  }
}

}  // namespace sirtaki::kernels
