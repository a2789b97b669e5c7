// The bytes of a group top-k payload, entry by entry.
//
// For: the sources of this folder. Threads: pure functions. Layout: group_topk.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/group_topk/group_topk.h"
#include "kernels/half/elements.h"
#include "kernels/half/sent.h"

namespace sirtaki::kernels {

inline std::size_t offset_bytes(const GroupTopk& how) {
  return how.group <= 256 ? 1 : 2;
}

// Where the entries of one group are.
struct GroupEntries {
  std::size_t first;     // element
  std::size_t elements;  // >= 1
  std::size_t entry;     // the group's first one
  std::size_t entries;
};

// Calls body(GroupEntries) for every group of n elements, in order.
template <class Body>
void for_each_group(const GroupTopk& how, std::size_t n, Body body) {
  const auto group = static_cast<std::size_t>(how.group);
  const auto keep = static_cast<std::size_t>(how.keep);
  std::size_t entry = 0;
  for (std::size_t first = 0; first < n; first += group, entry += keep) {
    const std::size_t elements = std::min(group, n - first);
    body(GroupEntries{first, elements, entry, std::min(keep, elements)});
  }
}

class PayloadWriter {
 public:
  PayloadWriter(const GroupTopk& how, std::size_t entries, std::byte* payload)
      : value_(how.value),
        value_bytes_(dtype_size(how.value)),
        offset_bytes_(offset_bytes(how)),
        values_(payload),
        offsets_(payload + entries * value_bytes_) {}

  // Entry by entry, in order. Returns what is left of `value`.
  float put(std::size_t offset, float value) {
    const Sent sent = value_ == DType::kF32   ? send<ref::Plain<float>>(value, values_)
                      : value_ == DType::kF16 ? send<ref::F16>(value, values_)
                                              : send<ref::BF16>(value, values_);
    finite_ = finite_ && sent.finite;
    if (offset_bytes_ == 1) {
      ref::Plain<std::uint8_t>::store(static_cast<std::uint8_t>(offset), offsets_);
    } else {
      ref::Plain<std::uint16_t>::store(static_cast<std::uint16_t>(offset), offsets_);
    }
    values_ += value_bytes_;
    offsets_ += offset_bytes_;
    return sent.left;
  }
  // Of all values so far.
  bool finite() const { return finite_; }

 private:
  DType value_;
  std::size_t value_bytes_;
  std::size_t offset_bytes_;
  std::byte* values_;
  std::byte* offsets_;
  bool finite_ = true;
};

// Value: an element policy of half/elements.h; Offset: std::uint8_t or std::uint16_t.
template <class Value, class Offset>
class PayloadReader {
 public:
  PayloadReader(std::size_t entries, const std::byte* payload)
      : values_(payload), offsets_(payload + entries * Value::kSize) {}
  float value(std::size_t entry) const { return Value::load(values_ + entry * Value::kSize); }
  std::size_t offset(std::size_t entry) const { return ref::Plain<Offset>::load(offsets_ + entry * sizeof(Offset)); }

 private:
  const std::byte* values_;
  const std::byte* offsets_;
};

// Calls body.template operator()<Value, Offset>() with the types that `how` means.
template <class Body>
void with_entry_types(const GroupTopk& how, Body body) {
  const bool narrow = offset_bytes(how) == 1;
  switch (how.value) {
    case DType::kF16:
      return narrow ? body.template operator()<ref::F16, std::uint8_t>()
                    : body.template operator()<ref::F16, std::uint16_t>();
    case DType::kBF16:
      return narrow ? body.template operator()<ref::BF16, std::uint8_t>()
                    : body.template operator()<ref::BF16, std::uint16_t>();
    default:
      return narrow ? body.template operator()<ref::Plain<float>, std::uint8_t>()
                    : body.template operator()<ref::Plain<float>, std::uint16_t>();
  }
}

}  // namespace sirtaki::kernels
