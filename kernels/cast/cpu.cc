#include "kernels/cast/cast.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cast/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Targets with one lane use the reference: one-lane loads of Highway require aligned pointers.
void cast_target(DType from, const std::byte* in, DType to, std::byte* out, std::size_t n) {
  ref::cast(from, in, to, out, static_cast<std::int64_t>(n));
}

#else

// Two vectors of float64 make one of float32, lanes in order.
struct F64Lane {
  using Tag = F32Tag;
  static constexpr std::size_t kSize = 8;
  using Wide = hn::Repartition<double, Tag>;
  static F32Vec load(const std::byte* from) {
    const hn::Half<Tag> half;
    const auto low = hn::DemoteTo(half, PlainLane<double>::load(from));
    const auto high = hn::DemoteTo(half, PlainLane<double>::load(from + hn::Lanes(Wide()) * sizeof(double)));
    return hn::Combine(Tag(), high, low);
  }
  static void store(F32Vec v, std::byte* to) {
    const hn::Half<Tag> half;
    PlainLane<double>::store(hn::PromoteTo(Wide(), hn::LowerHalf(half, v)), to);
    PlainLane<double>::store(hn::PromoteTo(Wide(), hn::UpperHalf(half, v)), to + hn::Lanes(Wide()) * sizeof(double));
  }
};

// Both lane policies compute in float32, so their vectors have the same number of elements.
template <class From, class To>
void run(const std::byte* in, std::byte* out, std::size_t n) {
  const std::size_t step = lanes<From>();
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    To::store(From::load(in + i * From::kSize), out + i * To::kSize);
  }
  if (i < n) {
    store_first<To>(load_first<From>(in + i * From::kSize, n - i), out + i * To::kSize, n - i);
  }
}

template <class HalfLane>
void to_half(DType from, const std::byte* in, std::byte* out, std::size_t n) {
  from == DType::kF64 ? run<F64Lane, HalfLane>(in, out, n) : run<PlainLane<float>, HalfLane>(in, out, n);
}

template <class HalfLane>
void from_half(const std::byte* in, DType to, std::byte* out, std::size_t n) {
  to == DType::kF64 ? run<HalfLane, F64Lane>(in, out, n) : run<HalfLane, PlainLane<float> >(in, out, n);
}

void cast_target(DType from, const std::byte* in, DType to, std::byte* out, std::size_t n) {
  if (to == DType::kF16) {
    to_half<F16Lane>(from, in, out, n);
  } else if (to == DType::kBF16) {
    to_half<BF16Lane>(from, in, out, n);
  } else if (from == DType::kF16) {
    from_half<F16Lane>(in, to, out, n);
  } else {
    from_half<BF16Lane>(in, to, out, n);
  }
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(cast_target);

void cast(DType from, const std::byte* in, DType to, std::byte* out, std::int64_t n) {
  SRT_CHECK(can_cast(from, to) && n >= 0);
  HWY_DYNAMIC_DISPATCH(cast_target)(from, in, to, out, static_cast<std::size_t>(n));
}

}  // namespace sirtaki::kernels
#endif
