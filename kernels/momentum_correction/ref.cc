#include "kernels/half/elements.h"
#include "kernels/momentum_correction/momentum_correction.h"

namespace sirtaki::kernels::ref {

void momentum_correct(const Momentum& how, std::int64_t n, const std::byte* gradient, std::byte* momentum,
                      std::byte* step) {
  using Float = Plain<float>;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const std::size_t at = i * sizeof(float);
    const float g = Float::load(gradient + at);
    const float u = canonical(how.factor * Float::load(momentum + at) + g);
    Float::store(u, momentum + at);
    Float::store(how.nesterov ? canonical(g + how.factor * u) : u, step + at);
  }
}

}  // namespace sirtaki::kernels::ref
