// BlockSelection: the blocks of a tensor with the largest mean magnitude are sent whole.
//
// There are two uses. In codecs that send blocks (filters of a convolution, or blocks of any tensor), each rank makes
// its own choice. In the reduction algorithm `shared`, all ranks send the same blocks, chosen by the sums of their
// norms, so that an allreduce carries the values. Plain value. Threads: any. Has no notion of a network.
// Methods: kernels/filter/filter.h; agreed choices of CLT-k (Chen et al., ScaleCom, 2020).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/filter/filter.h"

namespace sirtaki::compression {

class BlockSelection {
 public:
  // Block ids have 16 bits.
  static constexpr std::int64_t kMostBlocks = 65536;

  // numel >= 1, cut into at most kMostBlocks blocks of `block` elements, the last of which may be short; `keep` blocks
  // are sent. `value`: float32, float16 or bfloat16.
  BlockSelection(std::int64_t numel, std::int64_t block, std::int64_t keep, DType value);

  std::int64_t numel() const { return full_.filters * full_.size + tail_; }
  std::int64_t blocks() const { return full_.filters + (tail_ > 0 ? 1 : 0); }
  std::int64_t keep() const { return keep_; }
  DType value() const { return value_; }
  // Returns the number of values of all chosen blocks; a short block is padded with zeros to the size of the others.
  std::int64_t values() const { return keep_ * full_.size; }

  std::size_t norm_bytes() const { return static_cast<std::size_t>(blocks()) * sizeof(float); }
  std::size_t id_bytes() const { return static_cast<std::size_t>(keep_) * sizeof(std::uint16_t); }
  std::size_t value_bytes() const { return static_cast<std::size_t>(values()) * dtype_size(value_); }

  // Writes the mean magnitude of each block of gradient plus residual, float32. The sums become the residual.
  void norms(const kernels::Feedback& whole, std::byte* norms) const;
  // Writes the ids of the chosen blocks, ascending. Norms may be sums over ranks: equal norms give equal ids.
  void select(const std::byte* norms, std::byte* ids) const;
  bool valid(const std::byte* ids) const { return kernels::filter_ids_valid(blocks(), keep_, ids); }

  // Writes value_bytes() and subtracts the values from the residual. Requires a call of norms() with the same arrays.
  void gather(const std::byte* ids, const kernels::Feedback& whole, std::byte* values) const;

  struct Part {
    const std::byte* ids;  // valid
    const std::byte* values;
  };
  // Writes the sum of the parts, in their order, to `out`, numel() float32; +0 where no part has a block.
  void sum(std::span<const Part> parts, std::byte* out) const;

 private:
  std::int64_t count_full(const std::byte* ids) const;
  kernels::Feedback tail_of(const kernels::Feedback& whole) const { return whole.from(numel() - tail_); }

  kernels::FilterShape full_;  // whole blocks
  std::int64_t tail_;          // elements of the short block; 0 if there is none
  std::int64_t keep_;
  DType value_;
};

}  // namespace sirtaki::compression
