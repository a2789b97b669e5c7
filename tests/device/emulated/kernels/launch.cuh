// Starting and loading kernels on the emulator (tests/device/emulator.h), in the place of kernels/launch.cuh.
//
// For: kernels/*/cuda.cu, compiled for tests. Threads: one. Work is done when a launch returns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda_launch.h"
#include "tests/device/emulator.h"

namespace sirtaki::kernels::cuda {

// So few that kernels have to stride over their grid.
inline constexpr std::int64_t kMostBlocks = 3;

template <class... Parameters, class... Arguments>
Launch launch(void (*kernel)(Parameters...), std::int64_t blocks, unsigned threads, Stream /*stream*/,
              const Arguments&... arguments) {
  emulated::note_launched(reinterpret_cast<const void*>(kernel));
  if (blocks > 0) {
    emulated::run(static_cast<unsigned>(std::min(blocks, kMostBlocks)), threads, [&] { kernel(arguments...); });
  }
  return {};
}

template <class... Kernels>
Launch load(Kernels*... kernels) {
  (emulated::note_loaded(reinterpret_cast<const void*>(kernels)), ...);
  return {};
}

inline Launch clear(void* data, std::size_t bytes, Stream /*stream*/) {
  if (bytes > 0) {
    std::memset(data, 0, bytes);
  }
  return {};
}

}  // namespace sirtaki::kernels::cuda
