// TagGroup: all tags that are the same in some of their bits, such as those of one step of a stream.
// Plain value; a single tag is a group, too. Who builds tags knows which bits to name (runtime/engine/common/tags.h).
#pragma once

#include <cstdint>

#include "runtime/base/types.h"

namespace sirtaki::net {

class TagGroup {
 public:
  // Implicit: what takes a group takes a tag.
  constexpr TagGroup(OpTag tag) : value_(tag.value), mask_(kWhole) {}
  // The tags that agree with `tag` where `mask` has ones.
  constexpr TagGroup(OpTag tag, std::uint64_t mask) : value_(tag.value & mask), mask_(mask) {}

  constexpr bool contains(OpTag tag) const { return (tag.value & mask_) == value_; }
  // All of `other`.
  constexpr bool contains(const TagGroup& other) const {
    return (other.mask_ & mask_) == mask_ && (other.value_ & mask_) == value_;
  }
  constexpr bool single() const { return mask_ == kWhole; }
  constexpr OpTag first() const { return OpTag(value_); }
  constexpr std::uint64_t mask() const { return mask_; }

 private:
  static constexpr std::uint64_t kWhole = ~std::uint64_t{0};

  std::uint64_t value_;
  std::uint64_t mask_;
};

}  // namespace sirtaki::net
