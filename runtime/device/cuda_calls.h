// DeviceCalls: functions of CUDA's runtime, as the plug-in libsirtaki_cuda.so shows them beside its kernels
// (kernels/cuda_kernels.h).
//
// For: cuda_device.h. Functions that can fail say a cudaError_t, 0 where all is well. Threads: as DeviceApi.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sirtaki::device::cuda {

// A loader refuses a plug-in with another one.
inline constexpr std::uint32_t kCallsVersion = 2;

struct DeviceCalls {
  std::uint32_t version;
  const char* (*error_text)(int code);
  int (*count_devices)(int* count);
  // Makes the device current in this thread, which then takes no part in captures of others.
  int (*enter_thread)(int device);
  // The same until leave_thread(), which brings back what was the thread's before.
  int (*visit_thread)(int device, int* device_before, int* mode_before);
  int (*leave_thread)(int device_before, int mode_before);
  int (*make_stream)(bool high_priority, void** stream);
  int (*destroy_stream)(void* stream);
  int (*make_event)(void** event);
  int (*destroy_event)(void* event);
  int (*allocate_device)(void** data, std::size_t bytes);
  int (*release_device)(void* data);
  int (*allocate_pinned)(void** data, std::size_t bytes);
  int (*release_pinned)(void* data);
  int (*record)(void* event, void* stream);
  int (*wait)(void* stream, void* event);
  int (*query)(void* event, bool* done);
  int (*copy)(void* stream, void* to, const void* from, std::size_t bytes);
};

inline constexpr char kCallsSymbol[] = "sirtaki_cuda_device";
using CallsFunction = const DeviceCalls*();

}  // namespace sirtaki::device::cuda

extern "C" __attribute__((visibility("default"))) const sirtaki::device::cuda::DeviceCalls* sirtaki_cuda_device();
