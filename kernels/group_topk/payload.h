// The bytes of a group top-k payload, entry by entry.
//
// Private to this folder. Threads: pure functions. Layout: group_topk.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/group_topk/group_topk.h"
#include "kernels/half/elements.h"
#include "kernels/half/sent.h"

namespace sirtaki::kernels {

inline std::size_t offset_bytes(const GroupTopk& how) {
  return how.group <= 256 ? 1 : 2;
}

// The elements of one group and the position of its entries in the payload.
struct GroupEntries {
  std::size_t first;     // index of the first element
  std::size_t elements;  // number of elements, >= 1
  std::size_t entry;     // index of the first entry
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

// Calls body.template operator()<Value, Offset>() with the types of an entry of `how`.
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

class PayloadWriter {
 public:
  PayloadWriter(const GroupTopk& how, std::size_t entries, std::byte* payload)
      : how_(how), values_(payload), offsets_(payload + entries * dtype_size(how.value)) {}

  // Writes the next entries, elements at `offsets` of the `values` of a group; their residual replaces them in `left`,
  // which may be null.
  void put_all(std::span<const std::int32_t> offsets, const std::byte* values, std::byte* left) {
    with_entry_types(how_, [&]<class Value, class Offset>() {
      // Local copies: a store through a pointer to bytes cannot change them, so they stay in registers.
      std::byte* value_to = values_;
      std::byte* offset_to = offsets_;
      bool finite = finite_;
      for (const std::int32_t offset : offsets) {
        const std::size_t at = static_cast<std::size_t>(offset) * sizeof(float);
        const Sent sent = send<Value>(ref::canonical(ref::Plain<float>::load(values + at)), value_to);
        ref::Plain<Offset>::store(static_cast<Offset>(offset), offset_to);
        if (left != nullptr) {
          ref::Plain<float>::store(sent.left, left + at);
        }
        finite = finite && sent.finite;
        value_to += Value::kSize;
        offset_to += sizeof(Offset);
      }
      values_ = value_to;
      offsets_ = offset_to;
      finite_ = finite;
    });
  }
  // Returns true if all values so far are finite.
  bool finite() const { return finite_; }

 private:
  GroupTopk how_;
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

}  // namespace sirtaki::kernels
