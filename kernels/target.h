// Which instruction set the kernels run on: for `--check` and stats.
#pragma once

#include <string_view>

namespace sirtaki::kernels {

// "AVX2", "NEON", ...: what run-time dispatch chooses on this machine. Any thread.
std::string_view chosen_target();

}  // namespace sirtaki::kernels
