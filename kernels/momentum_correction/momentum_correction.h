// Momentum before selection: what error feedback keeps are steps of SGD with momentum, not gradients.
//
// For: codecs that send few elements. Threads: pure functions; no allocation. Arrays hold float32 and may be unaligned.
// Not for: forgetting the momentum of what was sent (group_topk_clear(), sparse_clear()).
// Method: momentum correction (Lin et al., Deep Gradient Compression, 2018).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sirtaki::kernels {

struct Momentum {
  float factor;  // m, as that of the optimizer, whose own is off
  bool nesterov = false;
};

// For n elements, n >= 0, each operation rounded to float32:
//   momentum[i] = m momentum[i] + gradient[i]
//   step[i]     = momentum[i], with Nesterov gradient[i] + m momentum[i]
// `step`, which is then compressed as a gradient is, may be `gradient`; without Nesterov also `momentum`. A NaN that
// comes out is always the same one.
void momentum_correct(const Momentum& how, std::int64_t n, const std::byte* gradient, std::byte* momentum,
                      std::byte* step);

namespace ref {

// The meaning of momentum_correct(), one element at a time.
void momentum_correct(const Momentum& how, std::int64_t n, const std::byte* gradient, std::byte* momentum,
                      std::byte* step);

}  // namespace ref
}  // namespace sirtaki::kernels
