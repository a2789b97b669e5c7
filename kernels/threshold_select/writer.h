// Writes a sparse payload whose number of entries is known only at the end.
//
// Private to this folder. Threads: pure functions. Layout: kernels/sparse_sum/sparse_sum.h.
#pragma once

#include <cstring>

#include "kernels/half/sent.h"
#include "kernels/sparse_sum/payload.h"

namespace sirtaki::kernels {

class SparseWriter {
 public:
  // Keeps offsets after the space of `capacity` values until finish().
  SparseWriter(DType value, std::int64_t n, std::size_t capacity, std::byte* payload)
      : value_(value),
        payload_(payload),
        values_(payload + sparse_values_at(n)),
        offsets_(payload + sparse_offsets_at(value, n, capacity)) {
    std::memset(payload, 0, sparse_values_at(n));
  }

  // Adds the next element, in order. Returns the residual of `value`.
  float put(std::size_t element, float value) {
    std::byte* to = values_ + entries_ * dtype_size(value_);
    const Sent sent = value_ == DType::kF32   ? send<ref::Plain<float>>(value, to)
                      : value_ == DType::kF16 ? send<ref::F16>(value, to)
                                              : send<ref::BF16>(value, to);
    finite_ = finite_ && sent.finite;
    const std::size_t tile = element / kSparseTile;
    SparseOffset::store(static_cast<std::uint16_t>(element % kSparseTile), offsets_ + entries_ * SparseOffset::kSize);
    std::byte* const count = payload_ + tile * SparseCount::kSize;
    SparseCount::store(static_cast<std::uint16_t>(SparseCount::load(count) + 1), count);
    ++entries_;
    return sent.left;
  }

  // Calls body(element, address of its value) for every entry so far; n elements in all. Must precede finish().
  template <class Body>
  void for_each(std::size_t n, Body body) const {
    for_each_sparse_tile(n, payload_, [&](const SparseTile& tile) {
      for (std::size_t e = tile.first; e < tile.first + tile.count; ++e) {
        body(tile.begin + SparseOffset::load(offsets_ + e * SparseOffset::kSize), values_ + e * dtype_size(value_));
      }
    });
  }

  // Moves the offsets behind the last value; the last call.
  void finish() { std::memmove(values_ + entries_ * dtype_size(value_), offsets_, entries_ * SparseOffset::kSize); }

  std::size_t entries() const { return entries_; }
  bool finite() const { return finite_; }

 private:
  DType value_;
  std::byte* payload_;
  std::byte* values_;
  std::byte* offsets_;
  std::size_t entries_ = 0;
  bool finite_ = true;
};

}  // namespace sirtaki::kernels
