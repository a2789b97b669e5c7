#include "kernels/outer_update/outer_update.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/outer_update/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Targets with one lane use the reference: one-lane loads of Highway require aligned pointers.
void update_target(const OuterStep& how, std::int64_t n, std::byte* anchor, std::byte* momentum, std::byte* mean) {
  ref::outer_update(how, n, anchor, momentum, mean);
}

#else

using Lane = PlainLane<float>;

template <bool kDifferences, bool kMomentum, bool kNesterov>
void update_as(const OuterStep& how, std::size_t n, std::byte* anchor, std::byte* momentum, std::byte* mean) {
  const F32Tag df;
  const auto lr = hn::Set(df, how.lr);
  const auto m = hn::Set(df, how.momentum);
  const std::size_t lanes = hn::Lanes(df);
  for (std::size_t i = 0; i < n; i += lanes) {
    const std::size_t at = i * sizeof(float);
    const std::size_t left = n - i;
    const auto before = load_up_to<Lane>(anchor + at, left);
    const auto given = load_up_to<Lane>(mean + at, left);
    const auto d = kDifferences ? hn::Neg(given) : hn::Sub(before, given);
    auto step = d;
    if constexpr (kMomentum) {
      const auto u = canonical(df, hn::Add(hn::Mul(m, load_up_to<Lane>(momentum + at, left)), d));
      store_up_to<Lane>(u, momentum + at, left);
      step = kNesterov ? hn::Add(d, hn::Mul(m, u)) : u;
    }
    store_up_to<Lane>(before, mean + at, left);
    store_up_to<Lane>(canonical(df, hn::Sub(before, hn::Mul(lr, step))), anchor + at, left);
  }
}

template <bool kDifferences>
void update_of(const OuterStep& how, std::size_t n, std::byte* anchor, std::byte* momentum, std::byte* mean) {
  if (momentum == nullptr) {
    update_as<kDifferences, false, false>(how, n, anchor, momentum, mean);
  } else if (how.nesterov) {
    update_as<kDifferences, true, true>(how, n, anchor, momentum, mean);
  } else {
    update_as<kDifferences, true, false>(how, n, anchor, momentum, mean);
  }
}

void update_target(const OuterStep& how, std::int64_t n, std::byte* anchor, std::byte* momentum, std::byte* mean) {
  const auto count = static_cast<std::size_t>(n);
  how.of_differences ? update_of<true>(how, count, anchor, momentum, mean)
                     : update_of<false>(how, count, anchor, momentum, mean);
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(update_target);

void outer_update(const OuterStep& how, std::int64_t n, std::byte* anchor, std::byte* momentum, std::byte* mean) {
  SRT_CHECK(n >= 0);
  HWY_DYNAMIC_DISPATCH(update_target)(how, n, anchor, momentum, mean);
}

}  // namespace sirtaki::kernels
#endif
