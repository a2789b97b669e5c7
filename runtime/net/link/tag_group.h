// TagGroup: all tags that agree in some of their bits, for example those of one step of a stream.
// Plain value; a single tag is a group, too. runtime/engine/common/tags.h defines the bits of a tag.
#pragma once

#include <cstdint>

#include "runtime/base/types.h"

namespace sirtaki::net {

class TagGroup {
 public:
  // Implicit, so that a tag can be passed as a group.
  constexpr TagGroup(OpTag tag) : value_(tag.value), mask_(kWhole) {}
  // All tags that agree with `tag` in the bits of `mask`.
  constexpr TagGroup(OpTag tag, std::uint64_t mask) : value_(tag.value & mask), mask_(mask) {}

  constexpr bool contains(OpTag tag) const { return (tag.value & mask_) == value_; }
  // Returns whether all tags of `other` are in this group.
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
