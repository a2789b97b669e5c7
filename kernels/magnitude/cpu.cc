#include <bit>

#include "kernels/half/elements.h"
#include "kernels/magnitude/magnitude.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/magnitude/cpu.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.h, which sets the target that this header is compiled for.
#include "kernels/magnitude/magnitude-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_RVV || (HWY_TARGET & (HWY_SVE | HWY_SVE2)) || !HWY_HAVE_FLOAT64

Magnitude magnitude_target(std::int64_t n, const Feedback& arrays) {
  return ref::magnitude(n, arrays);
}

#else

Magnitude magnitude_target(std::int64_t n, const Feedback& arrays) {
  return magnitude_of(arrays, 0, static_cast<std::size_t>(n));
}

#endif

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(magnitude_target);

Magnitude magnitude(std::int64_t n, const Feedback& arrays) {
  SRT_CHECK(n >= 0 && arrays.valid());
  return HWY_DYNAMIC_DISPATCH(magnitude_target)(n, arrays);
}

}  // namespace sirtaki::kernels
#endif
