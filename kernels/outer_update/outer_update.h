// Outer update: one step of SGD from an anchor towards the mean of what ranks have made of it.
//
// For: local updates, between two merges. Threads: pure functions; no allocation. Arrays hold float32, may be unaligned
// and do not overlap. Not for: the mean over the ranks (kernels/reduce/), steps between merges.
// Method: the outer optimizer of DiLoCo (Douillard et al., 2023), of BMUF (Chen and Huo, 2016) and SlowMo (Wang et al.,
// 2019): SGD with momentum or Nesterov's, which is meant as torch.optim.SGD has it, without damping or weight decay.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sirtaki::kernels {

struct OuterStep {
  float lr;
  float momentum = 0;
  bool nesterov = false;
  bool of_differences = false;  // `mean` is one of differences from the anchor, else of models
};

// For n elements, n >= 0, each operation rounded to float32:
//   d           = anchor[i] - mean[i], of differences -mean[i]: what SGD takes as the gradient
//   momentum[i] = how.momentum momentum[i] + d
//   step        = momentum[i], with Nesterov d + how.momentum momentum[i]; where `momentum` is null it is d
//   mean[i]     = anchor[i], whose bits it keeps
//   anchor[i]   = anchor[i] - how.lr step
// A NaN that comes out of `momentum` or `anchor` is always the same one.
void outer_update(const OuterStep& how, std::int64_t n, std::byte* anchor, std::byte* momentum, std::byte* mean);

namespace ref {

// The meaning of outer_update(), one element at a time.
void outer_update(const OuterStep& how, std::int64_t n, std::byte* anchor, std::byte* momentum, std::byte* mean);

}  // namespace ref
}  // namespace sirtaki::kernels
