// Plugin: the tables of libsirtaki_cuda.so, found at run time, so that nothing is linked with CUDA.
//
// Never closed: its functions are used until the end. Threads: any; plain values.
// Not for: whether there is a GPU (cuda_device.h).
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

// `path`: a file, or a name for the system's search. kUnavailable where it cannot be loaded, kUnsupported where it is
// of another version.
Result<Plugin> load_plugin(const std::string& path = "libsirtaki_cuda.so");

}  // namespace sirtaki::device
