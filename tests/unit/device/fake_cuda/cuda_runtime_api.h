// Fakes of the CUDA runtime functions that runtime/device/cuda_calls.cu calls: each records its name and returns the
// error that the test has set.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

// NOLINTBEGIN(readability-identifier-naming)
using cudaError_t = int;
inline constexpr int cudaSuccess = 0;
inline constexpr int cudaErrorMemoryAllocation = 2;
inline constexpr int cudaErrorNotReady = 600;
inline constexpr int cudaErrorNotSupported = 801;

struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyDefault = 4 };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaHostAllocDefault = 0;

namespace sirtaki::device::fake {

struct Cuda {
  std::vector<std::string> calls;
  std::map<std::string, int> errors;
  // Arguments of the last calls.
  int device = -1;
  int priority = 0;
  int capture_mode = -1;
  unsigned flags = 0;
  cudaStream_t stream = reinterpret_cast<cudaStream_t>(-1);

  int call(const char* name) {
    calls.emplace_back(name);
    const auto error = errors.find(name);
    return error == errors.end() ? 0 : error->second;
  }
};
inline Cuda& cuda() {
  static Cuda instance;
  return instance;
}

}  // namespace sirtaki::device::fake

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNotReady ? "not ready" : "an error";
}
inline cudaError_t cudaGetLastError() {
  return sirtaki::device::fake::cuda().call("GetLastError");
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 3;
  return sirtaki::device::fake::cuda().call("GetDeviceCount");
}
inline cudaError_t cudaSetDevice(int device) {
  sirtaki::device::fake::cuda().device = device;
  return sirtaki::device::fake::cuda().call("SetDevice");
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = sirtaki::device::fake::cuda().device;
  return sirtaki::device::fake::cuda().call("GetDevice");
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  sirtaki::device::fake::cuda().capture_mode = *mode;
  *mode = cudaStreamCaptureModeGlobal;
  return sirtaki::device::fake::cuda().call("ThreadExchangeStreamCaptureMode");
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return sirtaki::device::fake::cuda().call("DeviceGetStreamPriorityRange");
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  *stream = reinterpret_cast<cudaStream_t>(&sirtaki::device::fake::cuda());
  sirtaki::device::fake::cuda().flags = flags;
  sirtaki::device::fake::cuda().priority = priority;
  return sirtaki::device::fake::cuda().call("StreamCreateWithPriority");
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) {
  return sirtaki::device::fake::cuda().call("StreamDestroy");
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = reinterpret_cast<cudaEvent_t>(&sirtaki::device::fake::cuda());
  sirtaki::device::fake::cuda().flags = flags;
  return sirtaki::device::fake::cuda().call("EventCreateWithFlags");
}
inline cudaError_t cudaEventDestroy(cudaEvent_t) {
  return sirtaki::device::fake::cuda().call("EventDestroy");
}
inline cudaError_t cudaMalloc(void** data, std::size_t) {
  *data = &sirtaki::device::fake::cuda();
  return sirtaki::device::fake::cuda().call("Malloc");
}
inline cudaError_t cudaFree(void*) {
  return sirtaki::device::fake::cuda().call("Free");
}
inline cudaError_t cudaHostAlloc(void** data, std::size_t, unsigned) {
  *data = &sirtaki::device::fake::cuda();
  return sirtaki::device::fake::cuda().call("HostAlloc");
}
inline cudaError_t cudaFreeHost(void*) {
  return sirtaki::device::fake::cuda().call("FreeHost");
}
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t stream) {
  sirtaki::device::fake::cuda().stream = stream;
  return sirtaki::device::fake::cuda().call("EventRecord");
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return sirtaki::device::fake::cuda().call("StreamWaitEvent");
}
inline cudaError_t cudaEventQuery(cudaEvent_t) {
  return sirtaki::device::fake::cuda().call("EventQuery");
}
inline cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind kind, cudaStream_t) {
  return sirtaki::device::fake::cuda().call(kind == cudaMemcpyDefault ? "MemcpyAsync" : "a copy of one kind");
}
// NOLINTEND(readability-identifier-naming)
