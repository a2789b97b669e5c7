// Positions of the parts of a sparse payload.
//
// Used by kernels that write or read one. Threads: pure functions. Layout: sparse_sum.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/half/elements.h"
#include "kernels/sparse_sum/sparse_sum.h"

namespace sirtaki::kernels {

using SparseCount = ref::Plain<std::uint16_t>;
using SparseOffset = ref::Plain<std::uint16_t>;

inline std::size_t sparse_tiles(std::int64_t n) {
  return static_cast<std::size_t>((n + kSparseTile - 1) / kSparseTile);
}
inline std::size_t sparse_values_at(std::int64_t n) {
  return sparse_tiles(n) * SparseCount::kSize;
}
inline std::size_t sparse_offsets_at(DType value, std::int64_t n, std::size_t entries) {
  return sparse_values_at(n) + entries * dtype_size(value);
}

// A tile and its entries, [first, first + count) of the payload.
struct SparseTile {
  std::size_t begin;     // index of the first element
  std::size_t elements;  // number of elements, >= 1
  std::size_t first;
  std::size_t count;
};

// Calls body(SparseTile) for every tile of n elements, in order, with the counts of the payload.
template <class Body>
void for_each_sparse_tile(std::size_t n, const std::byte* payload, Body body) {
  std::size_t first = 0;
  for (std::size_t begin = 0, tile = 0; begin < n; begin += kSparseTile, ++tile) {
    const std::size_t count = SparseCount::load(payload + tile * SparseCount::kSize);
    body(SparseTile{begin, std::min<std::size_t>(kSparseTile, n - begin), first, count});
    first += count;
  }
}

// Calls body.template operator()<Element>() with the element policy of the dtype `value`.
template <class Body>
void with_value_type(DType value, Body body) {
  switch (value) {
    case DType::kF16:
      return body.template operator()<ref::F16>();
    case DType::kBF16:
      return body.template operator()<ref::BF16>();
    default:
      return body.template operator()<ref::Plain<float>>();
  }
}

}  // namespace sirtaki::kernels
