#include "kernels/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/target.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sirtaki::kernels::HWY_NAMESPACE {

const char* name_target() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace sirtaki::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sirtaki::kernels {

HWY_EXPORT(name_target);

std::string_view chosen_target() {
  return HWY_DYNAMIC_DISPATCH(name_target)();
}

}  // namespace sirtaki::kernels
#endif
