// Threshold selection: the elements that reach a threshold travel, up to a capacity; the rest waits.
//
// For: codecs. Threads: pure functions; no allocation. Arrays hold float32; all memory may be unaligned.
// Not for: the choice of the threshold (kernels/kth_magnitude/), sums of payloads (kernels/sparse_sum/).
// Method: threshold sparsification with error feedback (Aji and Heafield, Sparse Communication for Distributed Gradient
// Descent, 2017); the payload is bounded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/feedback.h"
#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

struct ThresholdSelect {
  float threshold;            // > 0
  std::int64_t capacity;      // entries that a payload may have: >= 0
  DType value = DType::kF32;  // what values travel as: float32, float16, bfloat16
};

// Exact room that a payload of n elements may take.
std::size_t threshold_max_bytes(const ThresholdSelect& how, std::int64_t n);

struct Selected {
  std::int64_t entries = 0;  // of the payload: sparse_bytes() of them were written
  std::int64_t wanted = 0;   // elements that reach the threshold
  bool finite = true;        // all numbers sent; one that is not reaches every threshold
};

// Writes a sparse payload (kernels/sparse_sum/) and what it leaves. Elements are compared by the bits of their
// magnitude, so that NaN reaches every threshold. Beyond the capacity the largest travel; of equal ones the first.
// Values and what they leave are those of group_topk_encode(). `payload` has room for threshold_max_bytes().
Selected threshold_select(const ThresholdSelect& how, std::int64_t n, const Feedback& arrays, std::byte* payload);

namespace ref {

// The meaning of threshold_select(); may allocate.
Selected threshold_select(const ThresholdSelect& how, std::int64_t n, const Feedback& arrays, std::byte* payload);

}  // namespace ref
}  // namespace sirtaki::kernels
