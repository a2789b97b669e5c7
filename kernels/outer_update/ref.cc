#include "kernels/half/elements.h"
#include "kernels/outer_update/outer_update.h"

namespace sirtaki::kernels::ref {

void outer_update(const OuterStep& how, std::int64_t n, std::byte* anchor, std::byte* momentum, std::byte* mean) {
  using Float = Plain<float>;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const std::size_t at = i * sizeof(float);
    const float before = Float::load(anchor + at);
    const float given = Float::load(mean + at);
    const float d = how.of_differences ? -given : before - given;
    float step = d;
    if (momentum != nullptr) {
      const float u = canonical(how.momentum * Float::load(momentum + at) + d);
      Float::store(u, momentum + at);
      step = how.nesterov ? d + how.momentum * u : u;
    }
    Float::store(before, mean + at);
    Float::store(canonical(before - how.lr * step), anchor + at);
  }
}

}  // namespace sirtaki::kernels::ref
