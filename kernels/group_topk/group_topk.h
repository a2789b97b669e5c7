// Group top-k: of every group of neighbouring elements the few of largest magnitude travel; the rest waits.
//
// For: codecs. Threads: pure functions; no allocation. Arrays hold float32, in whole groups from the start of a tensor
// (its last group may be short); all memory may be unaligned. Not for: other dtypes (kernels/cast/cast.h).
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
  std::int32_t keep;          // how many of them travel: 1 to group; a last group shorter than that travels whole
  DType value = DType::kF32;  // what they travel as: float32, float16, bfloat16
};

// The payload of n elements, n >= 0: the values of all entries, then their offsets in their groups, 8 bits wide for
// groups of up to 256 elements, else 16; little-endian. Entries stand in the order of the elements; group g begins with
// entry g * keep. So the size depends on n alone.
std::int64_t group_topk_entries(const GroupTopk& how, std::int64_t n);
std::size_t group_topk_bytes(const GroupTopk& how, std::int64_t n);

// Writes the payload of n elements and what it leaves. The order of magnitudes is that of the bits without the sign,
// so that NaN goes before infinity; of equal ones the lower offset goes first.
//   value float32   a sent element leaves +0
//   halves          rounded as half/sent.h says; the rest of the rounding is left
// True when all numbers sent are finite; a number that is not is always among them. A caller that wants its residual
// back in this case lets `left` be another array.
bool group_topk_encode(const GroupTopk& how, std::int64_t n, const Feedback& arrays, std::byte* payload);

// Whether this can be a payload of n elements: offsets ascend within each group and stay inside it.
bool group_topk_valid(const GroupTopk& how, std::int64_t n, const std::byte* payload);

// out[i] = the sum of what the payloads hold for element i, in their order, +0 where they hold nothing. The payloads
// are valid; none is needed. A NaN that comes out is always the same one.
void group_topk_sum(const GroupTopk& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

// data[i] = +0 for each element that the payload, a valid one, holds: what masks a momentum.
void group_topk_clear(const GroupTopk& how, std::int64_t n, const std::byte* payload, std::byte* data);

namespace ref {

// The meaning of the functions above; may allocate.
bool group_topk_encode(const GroupTopk& how, std::int64_t n, const Feedback& arrays, std::byte* payload);
void group_topk_sum(const GroupTopk& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);

}  // namespace ref
}  // namespace sirtaki::kernels
