// Group top-k: in every group of consecutive elements, the few with the largest magnitude are sent; the others stay in
// the residual.
//
// Used by codecs. Threads: pure functions; no allocation. Arrays hold float32, in whole groups from the start of a
// tensor (its last group may be short); all memory may be unaligned. kernels/cast/cast.h converts other dtypes.
// Method: selection inside fixed groups (Wang, Ma, Peng, patent, 2024), here with error feedback (feedback.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"
#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

struct GroupTopk {
  std::int32_t group;         // elements of a group: 1 to 65536
  std::int32_t keep;          // elements sent per group: 1 to group; a shorter last group is sent whole
  DType value = DType::kF32;  // dtype of the values sent: float32, float16, bfloat16
};

// The payload of n elements, n >= 0: the values of all entries, then their offsets in their groups, 8 bits wide for
// groups of up to 256 elements, else 16; little-endian. Entries are in the order of the elements; the first entry of
// group g is g * keep, so the size depends on n alone.
std::int64_t group_topk_entries(const GroupTopk& how, std::int64_t n);
std::size_t group_topk_bytes(const GroupTopk& how, std::int64_t n);

// Writes the payload of n elements and the residual. Magnitudes are ordered by their bits without the sign, so NaN is
// larger than infinity; of equal magnitudes the lower offset is selected.
//   value float32   a sent element leaves +0
//   halves          rounded by the rules of half/sent.h; the residual keeps the rounding error
// Returns true if all numbers sent are finite; a number that is not finite is always selected. A caller that must
// restore its residual in this case passes another array as `left`.
bool group_topk_encode(const GroupTopk& how, std::int64_t n, const Feedback& arrays, std::byte* payload);

// Returns true if `payload` can be one of n elements: offsets ascend within each group and stay inside it.
bool group_topk_valid(const GroupTopk& how, std::int64_t n, const std::byte* payload);

// Writes the sum of the payloads, in their order, to `out`; +0 where no payload has an entry. The payloads must be
// valid; there may be none. NaN results are canonical.
void group_topk_sum(const GroupTopk& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

// Sets data[i] = +0 for each element that has an entry in `payload`, a valid one; masks the momentum of sent elements.
void group_topk_clear(const GroupTopk& how, std::int64_t n, const std::byte* payload, std::byte* data);

namespace ref {

// Reference implementation of group_topk_encode(); it may allocate.
bool group_topk_encode(const GroupTopk& how, std::int64_t n, const Feedback& arrays, std::byte* payload);

}  // namespace ref
}  // namespace sirtaki::kernels
