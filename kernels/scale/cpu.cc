#include "kernels/scale/scale.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scale/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Targets with one lane use the reference: one-lane loads of Highway require aligned pointers.
void scale_target(DType dtype, std::byte* data, std::size_t n, double factor) {
  ref::scale(dtype, data, static_cast<std::int64_t>(n), factor);
}
void divide_target(DType dtype, std::byte* data, std::size_t n, double count) {
  ref::divide_by(dtype, data, static_cast<std::int64_t>(n), static_cast<std::int64_t>(count));
}

#else

struct Times {
  template <class V>
  static V apply(V a, V b) {
    return hn::Mul(a, b);
  }
};

struct DividedBy {
  template <class V>
  static V apply(V a, V b) {
    return hn::Div(a, b);
  }
};

template <class Op, class Lane>
void run(std::byte* data, std::size_t n, double operand) {
  const typename Lane::Tag d;
  const auto by = hn::Set(d, static_cast<hn::TFromD<typename Lane::Tag> >(operand));
  const std::size_t step = lanes<Lane>();
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    std::byte* at = data + i * Lane::kSize;
    Lane::store(canonical(d, Op::apply(Lane::load(at), by)), at);
  }
  if (i < n) {
    std::byte* at = data + i * Lane::kSize;
    store_first<Lane>(canonical(d, Op::apply(load_first<Lane>(at, n - i), by)), at, n - i);
  }
}

template <class Op>
void run_floating(DType dtype, std::byte* data, std::size_t n, double operand) {
  if (dtype == DType::kF32) {
    run<Op, PlainLane<float> >(data, n, operand);
  } else if (dtype == DType::kF64) {
    run<Op, PlainLane<double> >(data, n, operand);
  } else if (dtype == DType::kF16) {
    run<Op, F16Lane>(data, n, operand);
  } else {
    run<Op, BF16Lane>(data, n, operand);
  }
}

void scale_target(DType dtype, std::byte* data, std::size_t n, double factor) {
  run_floating<Times>(dtype, data, n, factor);
}
void divide_target(DType dtype, std::byte* data, std::size_t n, double count) {
  run_floating<DividedBy>(dtype, data, n, count);
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(scale_target);
HWY_EXPORT(divide_target);

// Integers are rarely scaled and their arrays are small, so the reference serves them.
void scale(DType dtype, std::byte* data, std::int64_t n, double factor) {
  SRT_CHECK(n >= 0);
  if (!dtype_is_floating(dtype)) {
    return ref::scale(dtype, data, n, factor);
  }
  HWY_DYNAMIC_DISPATCH(scale_target)(dtype, data, static_cast<std::size_t>(n), factor);
}

void divide_by(DType dtype, std::byte* data, std::int64_t n, std::int64_t count) {
  SRT_CHECK(n >= 0 && count >= 1);
  if (!dtype_is_floating(dtype)) {
    return ref::divide_by(dtype, data, n, count);
  }
  HWY_DYNAMIC_DISPATCH(divide_target)(dtype, data, static_cast<std::size_t>(n), static_cast<double>(count));
}

}  // namespace sirtaki::kernels
#endif
