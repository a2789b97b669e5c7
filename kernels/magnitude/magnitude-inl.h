// The sum of magnitudes for the SIMD target being compiled. magnitude.h defines the result.
//
// Included by the cpu.cc of a kernel, which foreach_target of Highway compiles once per target; hence no #pragma once.
// Empty for targets without float64, with one lane or with a number of lanes unknown to the compiler; they run the
// reference.
#include "kernels/half/half-inl.h"
#include "kernels/magnitude/magnitude.h"

#if defined(SIRTAKI_KERNELS_MAGNITUDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIRTAKI_KERNELS_MAGNITUDE_INL_H_
#undef SIRTAKI_KERNELS_MAGNITUDE_INL_H_
#else
#define SIRTAKI_KERNELS_MAGNITUDE_INL_H_
#endif

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_RVV && !(HWY_TARGET & (HWY_SVE | HWY_SVE2)) && HWY_HAVE_FLOAT64

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

// Loads up to a vector of a from element `first` on, `count` elements at most; the other lanes are zero.
template <bool kFeedback>
F32Vec load_sums(const Feedback& arrays, std::size_t first, std::size_t count) {
  using Lane = PlainLane<float>;
  const std::size_t at = first * sizeof(float);
  auto a = load_up_to<Lane>(arrays.gradient + at, count);
  if constexpr (kFeedback) {
    a = hn::Add(a, load_up_to<Lane>(arrays.residual + at, count));
  }
  return canonical(F32Tag(), a);
}

class MagnitudeSums {
 public:
  MagnitudeSums() {
    for (F64Vec& sum : sums_) {
      sum = hn::Zero(F64Tag());
    }
  }

  // Adds elements [first, end).
  template <bool kFeedback>
  void add(const Feedback& arrays, std::size_t first, std::size_t end) {
    std::size_t i = first;
    for (; i + kSums <= end; i += kSums) {
      for (std::size_t v = 0; v < kVectors; ++v) {
        take(load_sums<kFeedback>(arrays, i + v * kLanes, kLanes), v);
      }
    }
    for (std::size_t v = 0; i < end; i += kLanes, ++v) {
      take(load_sums<kFeedback>(arrays, i, end - i), v);
    }
  }

  Magnitude result() const {
    HWY_ALIGN double lanes[kSums];
    for (std::size_t v = 0; v < 2 * kVectors; ++v) {
      hn::Store(sums_[v], F64Tag(), lanes + v * kLanes / 2);
    }
    double sum = 0;
    for (const double lane : lanes) {
      sum += lane;
    }
    const auto bits = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(I32Tag(), largest_)));
    return {ref::canonical(sum), std::bit_cast<float>(bits)};
  }

 private:
  using F64Tag = hn::Repartition<double, F32Tag>;
  using F64Vec = hn::Vec<F64Tag>;
  static constexpr std::size_t kSums = 16;
  static constexpr std::size_t kLanes = hn::MaxLanes(F32Tag());
  static constexpr std::size_t kVectors = kSums / kLanes;

  // v: index of the vector among the 16 elements.
  void take(F32Vec a, std::size_t v) {
    const auto size = hn::Abs(a);
    largest_ = hn::Max(largest_, hn::BitCast(I32Tag(), size));
    F64Vec* const to = sums_ + 2 * v;
    to[0] = hn::Add(to[0], hn::PromoteTo(F64Tag(), hn::LowerHalf(size)));
    to[1] = hn::Add(to[1], hn::PromoteTo(F64Tag(), hn::UpperHalf(hn::Half<F32Tag>(), size)));
  }

  F64Vec sums_[2 * kVectors];
  I32Vec largest_ = hn::Zero(I32Tag());
};

inline Magnitude magnitude_of(const Feedback& arrays, std::size_t first, std::size_t end) {
  MagnitudeSums sums;
  arrays.residual == nullptr ? sums.add<false>(arrays, first, end) : sums.add<true>(arrays, first, end);
  return sums.result();
}

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
#endif
