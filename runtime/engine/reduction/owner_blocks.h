// OwnerBlocks: the layout of stripes in memory that is divided by owner.
//
// Used by reductions that send stripes to their owners and receive them back. A plain value. Thread: loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/engine/reduction/slices.h"

namespace sirtaki::engine {

class OwnerBlocks {
 public:
  // Lays out the blocks of owners 0 to ranks - 1 one behind the other. A block has `header` bytes, then
  // bytes_of(stripe) bytes for each stripe of the owner, in order.
  template <class BytesOf>
  OwnerBlocks(int ranks, std::size_t header, const std::vector<Stripe>& stripes, BytesOf bytes_of)
      : sizes_(static_cast<std::size_t>(ranks), static_cast<std::int64_t>(header)) {
    places_.reserve(stripes.size());
    for (const Stripe& stripe : stripes) {
      std::int64_t& size = sizes_[static_cast<std::size_t>(stripe.owner)];
      places_.push_back({static_cast<std::size_t>(size), bytes_of(stripe)});
      size += static_cast<std::int64_t>(places_.back().bytes);
    }
    for (const std::int64_t size : sizes_) {
      begins_.push_back(total_);
      total_ += static_cast<std::size_t>(size);
    }
  }

  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  std::size_t size(Rank owner) const { return static_cast<std::size_t>(sizes_[static_cast<std::size_t>(owner)]); }
  std::size_t total() const { return total_; }

  // Return the block of an owner, or the place of a stripe, in the memory of all blocks (Bytes or ConstBytes).
  template <class Memory>
  Memory block(Memory all, Rank owner) const {
    return all.subspan(begins_[static_cast<std::size_t>(owner)], size(owner));
  }
  template <class Memory>
  Memory in_all(Memory all, const Stripe& stripe) const {
    return in_block(block(all, stripe.owner), stripe);
  }
  // Returns the place of a stripe in the memory of the block of its owner.
  template <class Memory>
  Memory in_block(Memory block, const Stripe& stripe) const {
    return block.subspan(places_[stripe.index].at, places_[stripe.index].bytes);
  }

 private:
  struct Place {
    std::size_t at;  // offset in its block
    std::size_t bytes;
  };

  std::vector<std::int64_t> sizes_;  // indexed by owner
  std::vector<std::size_t> begins_;
  std::vector<Place> places_;  // indexed by stripe
  std::size_t total_ = 0;
};

}  // namespace sirtaki::engine
