#include "kernels/group_topk/payload.h"

#include <cstring>

#include "runtime/base/check.h"

namespace sirtaki::kernels {
namespace {

using Float = ref::Plain<float>;

bool is_sound(const GroupTopk& how) {
  const bool value = how.value == DType::kF32 || how.value == DType::kF16 || how.value == DType::kBF16;
  return value && how.group >= 1 && how.group <= 65536 && how.keep >= 1 && how.keep <= how.group;
}

template <class Reader>
bool offsets_ascend(const Reader& reader, const GroupEntries& group) {
  std::size_t least = 0;
  for (std::size_t e = group.entry; e < group.entry + group.entries; ++e) {
    const std::size_t offset = reader.offset(e);
    if (offset < least || offset >= group.elements) {
      return false;
    }
    least = offset + 1;
  }
  return true;
}

template <class Reader>
void add_group(const Reader& reader, const GroupEntries& group, std::byte* out) {
  for (std::size_t e = group.entry; e < group.entry + group.entries; ++e) {
    std::byte* at = out + (group.first + reader.offset(e)) * sizeof(float);
    Float::store(ref::canonical(Float::load(at) + reader.value(e)), at);
  }
}

}  // namespace

std::int64_t group_topk_entries(const GroupTopk& how, std::int64_t n) {
  SRT_CHECK(is_sound(how) && n >= 0);
  return n / how.group * how.keep + std::min<std::int64_t>(n % how.group, how.keep);
}

std::size_t group_topk_bytes(const GroupTopk& how, std::int64_t n) {
  return static_cast<std::size_t>(group_topk_entries(how, n)) * (dtype_size(how.value) + offset_bytes(how));
}

bool group_topk_valid(const GroupTopk& how, std::int64_t n, const std::byte* payload) {
  const auto entries = static_cast<std::size_t>(group_topk_entries(how, n));
  bool valid = true;
  with_entry_types(how, [&]<class Value, class Offset>() {
    const PayloadReader<Value, Offset> reader(entries, payload);
    for_each_group(how, static_cast<std::size_t>(n),
                   [&](const GroupEntries& group) { valid = valid && offsets_ascend(reader, group); });
  });
  return valid;
}

// Adds group by group, so that the sums of a group stay in the nearest cache.
void group_topk_sum(const GroupTopk& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out) {
  const auto entries = static_cast<std::size_t>(group_topk_entries(how, n));
  with_entry_types(how, [&]<class Value, class Offset>() {
    for_each_group(how, static_cast<std::size_t>(n), [&](const GroupEntries& group) {
      std::memset(out + group.first * sizeof(float), 0, group.elements * sizeof(float));
      for (const std::byte* payload : payloads) {
        add_group(PayloadReader<Value, Offset>(entries, payload), group, out);
      }
    });
  });
}

void group_topk_clear(const GroupTopk& how, std::int64_t n, const std::byte* payload, std::byte* data) {
  const auto entries = static_cast<std::size_t>(group_topk_entries(how, n));
  with_entry_types(how, [&]<class Value, class Offset>() {
    const PayloadReader<Value, Offset> reader(entries, payload);
    for_each_group(how, static_cast<std::size_t>(n), [&](const GroupEntries& group) {
      for (std::size_t e = group.entry; e < group.entry + group.entries; ++e) {
        Float::store(0.0F, data + (group.first + reader.offset(e)) * sizeof(float));
      }
    });
  });
}

}  // namespace sirtaki::kernels
