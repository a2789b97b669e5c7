#include <algorithm>

#include "kernels/finite/finite.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/finite/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/half/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Targets with one lane use the reference: one-lane loads of Highway require aligned pointers.
bool finite_target(DType dtype, const std::byte* data, std::size_t n) {
  return ref::all_finite(dtype, data, static_cast<std::int64_t>(n));
}

#else

// Elements examined between two checks for an early exit.
constexpr std::size_t kBlock = 8192;

// A number is infinite or NaN if all bits of its exponent are set.
template <class Bits>
bool all(const std::byte* data, std::size_t n, Bits exponent) {
  using Lane = PlainLane<Bits>;
  const typename Lane::Tag d;
  const auto mask = hn::Set(d, exponent);
  const auto found_in = [&](hn::Vec<typename Lane::Tag> v) {
    return hn::VecFromMask(d, hn::Eq(hn::And(v, mask), mask));
  };
  std::size_t i = 0;
  while (i + hn::Lanes(d) <= n) {
    const std::size_t end = std::min(n, i + kBlock);
    auto found = hn::Zero(d);
    for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) {
      found = hn::Or(found, found_in(Lane::load(data + i * sizeof(Bits))));
    }
    if (!hn::AllTrue(d, hn::Eq(found, hn::Zero(d)))) {
      return false;
    }
  }
  return i == n || hn::AllTrue(d, hn::Eq(found_in(load_first<Lane>(data + i * sizeof(Bits), n - i)), hn::Zero(d)));
}

bool finite_target(DType dtype, const std::byte* data, std::size_t n) {
  switch (dtype) {
    case DType::kF16:
      return all<std::uint16_t>(data, n, 0x7C00);
    case DType::kBF16:
      return all<std::uint16_t>(data, n, 0x7F80);
    case DType::kF32:
      return all<std::uint32_t>(data, n, 0x7F800000);
    case DType::kF64:
      return all<std::uint64_t>(data, n, 0x7FF0000000000000);
    default:
      return true;
  }
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(finite_target);

bool all_finite(DType dtype, const std::byte* data, std::int64_t n) {
  SRT_CHECK(n >= 0);
  return HWY_DYNAMIC_DISPATCH(finite_target)(dtype, data, static_cast<std::size_t>(n));
}

}  // namespace sirtaki::kernels
#endif
