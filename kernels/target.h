// The instruction set that the CPU kernels run on, for `--check` and stats.
#pragma once

#include <string_view>

namespace sirtaki::kernels {

// Returns the target that run-time dispatch chooses on this machine, such as "AVX2" or "NEON". Callable from any
// thread.
std::string_view chosen_target();

}  // namespace sirtaki::kernels
