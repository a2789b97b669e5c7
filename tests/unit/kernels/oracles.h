// Oracles: slow definitions of kernels whose product code is not checked against kernels/*/ref.cc.
//
// Used by tests of kernels on CPU and GPU, and by the fake device. The fallbacks of CPUs without vectors are
// kernels/*/ref.cc. Threads: pure functions; they allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/filter/filter.h"
#include "kernels/group_topk/group_topk.h"
#include "kernels/kth_magnitude/kth_magnitude.h"
#include "kernels/sparse_sum/sparse_sum.h"

namespace sirtaki::kernels::ref {

void filter_select(std::int64_t filters, std::int64_t keep, const std::byte* norms, std::byte* ids);
void filter_sum(const FilterShape& shape, DType value, std::span<const FilterPart> parts, std::byte* out);
void group_topk_sum(const GroupTopk& how, std::int64_t n, std::span<const std::byte* const> payloads, std::byte* out);
// Sorts the magnitudes.
KthMagnitude kth_magnitude(std::int64_t n, std::int64_t k, const std::byte* data);
// Adds dense arrays.
void sparse_sum(DType value, std::int64_t n, std::span<const SparsePayload> payloads, std::byte* out);

}  // namespace sirtaki::kernels::ref
