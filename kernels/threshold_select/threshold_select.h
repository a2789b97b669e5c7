// Threshold selection: the elements that reach a threshold are sent, up to a capacity; the others stay in the residual.
//
// Used by codecs. Threads: pure functions; no allocation. Arrays hold float32; all memory may be unaligned.
// kernels/kth_magnitude/ finds thresholds, kernels/sparse_sum/ adds payloads.
// Method: threshold sparsification with error feedback (Aji and Heafield, Sparse Communication for Distributed Gradient
// Descent, 2017); here the payload is bounded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/feedback.h"
#include "runtime/base/dtype.h"

namespace sirtaki::kernels {

struct ThresholdSelect {
  float threshold;            // > 0
  std::int64_t capacity;      // the largest number of entries of a payload, >= 0
  DType value = DType::kF32;  // dtype of the values sent: float32, float16, bfloat16
};

// Returns the size of the largest payload of n elements.
std::size_t threshold_max_bytes(const ThresholdSelect& how, std::int64_t n);

struct Selected {
  std::int64_t entries = 0;  // entries of the payload, which is sparse_bytes() long
  std::int64_t wanted = 0;   // elements that reach the threshold
  bool finite = true;        // all numbers sent are finite; a number that is not reaches every threshold
};

// Writes a sparse payload (kernels/sparse_sum/) and the residual. Elements are compared by the bits of their magnitude,
// so that NaN reaches every threshold. Beyond the capacity, the largest are sent; of equal ones the first. Values and
// residual are those of group_topk_encode(). `payload` has room for threshold_max_bytes().
Selected threshold_select(const ThresholdSelect& how, std::int64_t n, const Feedback& arrays, std::byte* payload);

namespace ref {

// Reference implementation of threshold_select(); may allocate.
Selected threshold_select(const ThresholdSelect& how, std::int64_t n, const Feedback& arrays, std::byte* payload);

}  // namespace ref
}  // namespace sirtaki::kernels
