#include "kernels/momentum_correction/momentum_correction.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/momentum_correction/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Targets with one lane use the reference: one-lane loads of Highway require aligned pointers.
void correct_target(const Momentum& how, std::int64_t n, const std::byte* gradient, std::byte* momentum,
                    std::byte* step) {
  ref::momentum_correct(how, n, gradient, momentum, step);
}

#else

using Lane = PlainLane<float>;

template <bool kNesterov>
F32Vec step_of(F32Vec m, F32Vec g, F32Vec u) {
  return kNesterov ? canonical(F32Tag(), hn::Add(g, hn::Mul(m, u))) : u;
}

template <bool kNesterov>
void correct_as(float factor, std::size_t n, const std::byte* gradient, std::byte* momentum, std::byte* step) {
  const F32Tag d;
  const auto m = hn::Set(d, factor);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const std::size_t at = i * sizeof(float);
    const auto g = Lane::load(gradient + at);
    const auto u = canonical(d, hn::Add(hn::Mul(m, Lane::load(momentum + at)), g));
    Lane::store(u, momentum + at);
    Lane::store(step_of<kNesterov>(m, g, u), step + at);
  }
  if (i < n) {
    const std::size_t at = i * sizeof(float);
    const auto g = load_first<Lane>(gradient + at, n - i);
    const auto u = canonical(d, hn::Add(hn::Mul(m, load_first<Lane>(momentum + at, n - i)), g));
    store_first<Lane>(u, momentum + at, n - i);
    store_first<Lane>(step_of<kNesterov>(m, g, u), step + at, n - i);
  }
}

void correct_target(const Momentum& how, std::int64_t n, const std::byte* gradient, std::byte* momentum,
                    std::byte* step) {
  const auto count = static_cast<std::size_t>(n);
  how.nesterov ? correct_as<true>(how.factor, count, gradient, momentum, step)
               : correct_as<false>(how.factor, count, gradient, momentum, step);
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(correct_target);

void momentum_correct(const Momentum& how, std::int64_t n, const std::byte* gradient, std::byte* momentum,
                      std::byte* step) {
  SRT_CHECK(n >= 0 && !(how.nesterov && step == momentum));
  HWY_DYNAMIC_DISPATCH(correct_target)(how, n, gradient, momentum, step);
}

}  // namespace sirtaki::kernels
#endif
