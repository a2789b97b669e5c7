// DeviceCalls: the functions of the CUDA runtime that the plug-in libsirtaki_cuda.so exports beside its kernels
// (kernels/cuda_kernels.h).
//
// Used by cuda_device.h only. Functions that can fail return a cudaError_t as int; 0 is success. Threads: as DeviceApi.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sirtaki::device::cuda {

// The loader rejects a plug-in with another version.
inline constexpr std::uint32_t kCallsVersion = 3;

// The result of allocate_device() and allocate_pinned() when there is too little memory: cudaErrorMemoryAllocation.
inline constexpr int kOutOfMemory = 2;

struct DeviceCalls {
  std::uint32_t version;
  const char* (*error_text)(int code);
  int (*count_devices)(int* count);
  // Makes the device current in this thread, and keeps the thread out of graph captures of other threads.
  int (*enter_thread)(int device);
  // Does the same until leave_thread(), which restores the previous device and capture mode.
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
  int (*record_all)(void* event);
  int (*wait)(void* stream, void* event);
  int (*query)(void* event, bool* done);
  int (*copy)(void* stream, void* to, const void* from, std::size_t bytes);
};

inline constexpr char kCallsSymbol[] = "sirtaki_cuda_device";
using CallsFunction = const DeviceCalls*();

}  // namespace sirtaki::device::cuda

extern "C" __attribute__((visibility("default"))) const sirtaki::device::cuda::DeviceCalls* sirtaki_cuda_device();
