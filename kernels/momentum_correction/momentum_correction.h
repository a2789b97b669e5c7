// Momentum correction: error feedback accumulates steps of SGD with momentum instead of gradients.
//
// Used by codecs that send few elements. Threads: pure functions; no allocation. Arrays hold float32 and may be
// unaligned. group_topk_clear() and sparse_clear() reset the momentum of sent elements.
// Method: momentum correction (Lin et al., Deep Gradient Compression, 2018).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sirtaki::kernels {

struct Momentum {
  float factor;  // m, in place of the momentum of the optimizer, which must be off
  bool nesterov = false;
};

// Computes, for n elements, n >= 0, each operation rounded to float32:
//   momentum[i] = m momentum[i] + gradient[i]
//   step[i]     = momentum[i], with Nesterov gradient[i] + m momentum[i]
// `step` is compressed in place of the gradient; it may be `gradient`, and without Nesterov also `momentum`. NaN
// results are canonical.
void momentum_correct(const Momentum& how, std::int64_t n, const std::byte* gradient, std::byte* momentum,
                      std::byte* step);

namespace ref {

// Reference implementation of momentum_correct(), one element at a time.
void momentum_correct(const Momentum& how, std::int64_t n, const std::byte* gradient, std::byte* momentum,
                      std::byte* step);

}  // namespace ref
}  // namespace sirtaki::kernels
