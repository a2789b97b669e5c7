// Plugin: the function tables of libsirtaki_cuda.so, loaded at run time, so that no other library links with CUDA.
//
// The library is never closed, because its functions are used until the process ends. Thread-safe; plain values.
// Not for detecting a GPU (cuda_device.h).
#pragma once

#include <string>

#include "kernels/cuda_kernels.h"
#include "runtime/base/status.h"
#include "runtime/device/cuda_calls.h"

namespace sirtaki::device {

struct Plugin {
  const kernels::cuda::Kernels* kernels = nullptr;
  const cuda::DeviceCalls* calls = nullptr;
};

// Loads the plug-in from `path`, a file or a name that the dynamic linker searches. kUnavailable if loading fails,
// kUnsupported if its version differs.
Result<Plugin> load_plugin(const std::string& path = "libsirtaki_cuda.so");

}  // namespace sirtaki::device
