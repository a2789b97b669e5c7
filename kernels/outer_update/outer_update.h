// Outer update: one step of SGD from an anchor towards the mean of the models of the ranks.
//
// Used by local updates at a merge. Threads: pure functions; no allocation. Arrays hold float32, may be unaligned and
// do not overlap. kernels/reduce/ computes the mean over the ranks.
// Method: the outer optimizer of DiLoCo (Douillard et al., 2023), of BMUF (Chen and Huo, 2016) and SlowMo (Wang et al.,
// 2019): SGD with momentum or Nesterov momentum, as defined by torch.optim.SGD without damping or weight decay.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sirtaki::kernels {

struct OuterStep {
  float lr;
  float momentum = 0;
  bool nesterov = false;
  bool of_differences = false;  // `mean` is the mean of differences from the anchor, else of models
};

// Computes, for n elements, n >= 0, each operation rounded to float32:
//   d           = anchor[i] - mean[i], or -mean[i] with of_differences: the gradient for SGD
//   momentum[i] = how.momentum momentum[i] + d
//   step        = momentum[i], with Nesterov d + how.momentum momentum[i]; d if `momentum` is null
//   mean[i]     = anchor[i], bit for bit
//   anchor[i]   = anchor[i] - how.lr step
// NaN results in `momentum` and `anchor` are canonical.
void outer_update(const OuterStep& how, std::int64_t n, std::byte* anchor, std::byte* momentum, std::byte* mean);

namespace ref {

// Reference implementation of outer_update(), one element at a time.
void outer_update(const OuterStep& how, std::int64_t n, std::byte* anchor, std::byte* momentum, std::byte* mean);

}  // namespace ref
}  // namespace sirtaki::kernels
