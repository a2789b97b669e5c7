#include "kernels/anchor/anchor.h"
#include "kernels/half/elements.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/anchor/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_RVV || (HWY_TARGET & (HWY_SVE | HWY_SVE2)) || !HWY_HAVE_FLOAT64

// Targets without float64, with one lane or with a number of lanes unknown to the compiler use the reference.
void subtract_target(std::int64_t n, const std::byte* a, const std::byte* b, std::byte* out) {
  ref::subtract(n, a, b, out);
}
void carry_over_target(std::int64_t n, const std::byte* before, const std::byte* after, std::byte* model) {
  ref::carry_over(n, before, after, model);
}
void subtract_scaled_target(std::int64_t n, const std::byte* a, float factor, const std::byte* b, std::byte* out) {
  ref::subtract_scaled(n, a, factor, b, out);
}
double square_sum_target(std::int64_t n, const std::byte* a, const std::byte* b) {
  return ref::square_sum(n, a, b);
}

#else

using Lane = PlainLane<float>;

// Writes out[i] = op(i) for vectors that begin at byte `at`, with `left` elements to the end.
template <class Op>
void run(std::int64_t n, std::byte* out, const Op& op) {
  const auto count = static_cast<std::size_t>(n);
  const std::size_t lanes = hn::Lanes(F32Tag());
  for (std::size_t i = 0; i < count; i += lanes) {
    const std::size_t at = i * sizeof(float);
    store_up_to<Lane>(canonical(F32Tag(), op(at, count - i)), out + at, count - i);
  }
}

void subtract_target(std::int64_t n, const std::byte* a, const std::byte* b, std::byte* out) {
  run(n, out, [a, b](std::size_t at, std::size_t left) {
    return hn::Sub(load_up_to<Lane>(a + at, left), load_up_to<Lane>(b + at, left));
  });
}

void carry_over_target(std::int64_t n, const std::byte* before, const std::byte* after, std::byte* model) {
  run(n, model, [=](std::size_t at, std::size_t left) {
    const auto moved = hn::Sub(load_up_to<Lane>(before + at, left), load_up_to<Lane>(after + at, left));
    return hn::Sub(load_up_to<Lane>(model + at, left), moved);
  });
}

void subtract_scaled_target(std::int64_t n, const std::byte* a, float factor, const std::byte* b, std::byte* out) {
  const auto by = hn::Set(F32Tag(), factor);
  run(n, out, [=](std::size_t at, std::size_t left) {
    return hn::Sub(load_up_to<Lane>(a + at, left), hn::Mul(by, load_up_to<Lane>(b + at, left)));
  });
}

class SquareSums {
 public:
  SquareSums() {
    for (F64Vec& sum : sums_) {
      sum = hn::Zero(F64Tag());
    }
  }

  template <bool kDifference>
  void add(std::size_t n, const std::byte* a, const std::byte* b) {
    std::size_t i = 0;
    for (; i + kSums <= n; i += kSums) {
      for (std::size_t v = 0; v < kVectors; ++v) {
        take(load<kDifference>(a, b, i + v * kLanes, kLanes), v);
      }
    }
    for (std::size_t v = 0; i < n; i += kLanes, ++v) {
      take(load<kDifference>(a, b, i, n - i), v);
    }
  }

  double result() const {
    HWY_ALIGN double lanes[kSums];
    for (std::size_t v = 0; v < 2 * kVectors; ++v) {
      hn::Store(sums_[v], F64Tag(), lanes + v * kLanes / 2);
    }
    double sum = 0;
    for (const double lane : lanes) {
      sum += lane;
    }
    return ref::canonical(sum);
  }

 private:
  using F64Tag = hn::Repartition<double, F32Tag>;
  using F64Vec = hn::Vec<F64Tag>;
  static constexpr std::size_t kSums = 16;
  static constexpr std::size_t kLanes = hn::MaxLanes(F32Tag());
  static constexpr std::size_t kVectors = kSums / kLanes;

  // Lanes after the last element are zero: they change no sum, since a sum is never -0.
  template <bool kDifference>
  static F32Vec load(const std::byte* a, const std::byte* b, std::size_t first, std::size_t count) {
    const std::size_t at = first * sizeof(float);
    auto value = load_up_to<Lane>(a + at, count);
    if constexpr (kDifference) {
      value = hn::Sub(value, load_up_to<Lane>(b + at, count));
    }
    return canonical(F32Tag(), value);
  }

  // v: index of the vector among the 16 elements.
  void take(F32Vec value, std::size_t v) {
    F64Vec* const to = sums_ + 2 * v;
    const auto low = hn::PromoteTo(F64Tag(), hn::LowerHalf(value));
    const auto high = hn::PromoteTo(F64Tag(), hn::UpperHalf(hn::Half<F32Tag>(), value));
    to[0] = hn::Add(to[0], hn::Mul(low, low));
    to[1] = hn::Add(to[1], hn::Mul(high, high));
  }

  F64Vec sums_[2 * kVectors];
};

double square_sum_target(std::int64_t n, const std::byte* a, const std::byte* b) {
  SquareSums sums;
  const auto count = static_cast<std::size_t>(n);
  b == nullptr ? sums.add<false>(count, a, b) : sums.add<true>(count, a, b);
  return sums.result();
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(subtract_target);
HWY_EXPORT(carry_over_target);
HWY_EXPORT(subtract_scaled_target);
HWY_EXPORT(square_sum_target);

void subtract(std::int64_t n, const std::byte* a, const std::byte* b, std::byte* out) {
  SRT_CHECK(n >= 0);
  HWY_DYNAMIC_DISPATCH(subtract_target)(n, a, b, out);
}

void carry_over(std::int64_t n, const std::byte* before, const std::byte* after, std::byte* model) {
  SRT_CHECK(n >= 0);
  HWY_DYNAMIC_DISPATCH(carry_over_target)(n, before, after, model);
}

void subtract_scaled(std::int64_t n, const std::byte* a, float factor, const std::byte* b, std::byte* out) {
  SRT_CHECK(n >= 0);
  HWY_DYNAMIC_DISPATCH(subtract_scaled_target)(n, a, factor, b, out);
}

double square_sum(std::int64_t n, const std::byte* a, const std::byte* b) {
  SRT_CHECK(n >= 0);
  return HWY_DYNAMIC_DISPATCH(square_sum_target)(n, a, b);
}

}  // namespace sirtaki::kernels
#endif
