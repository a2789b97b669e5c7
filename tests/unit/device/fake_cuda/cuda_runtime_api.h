// The functions of CUDA's runtime that runtime/device/cuda_calls.cu calls, played: each writes down its name and says
// what the test tells it.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

// NOLINTBEGIN(readability-identifier-naming)
using cudaError_t = int;
inline constexpr int cudaSuccess = 0;
inline constexpr int cudaErrorNotReady = 600;

struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyDefault = 4 };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaHostAllocDefault = 0;

namespace sirtaki::device::played {

struct Cuda {
  std::vector<std::string> calls;
  std::map<std::string, int> errors;
  // Numbers that functions were called with.
  int device = -1;
  int priority = 0;
  int capture_mode = -1;
  unsigned flags = 0;

  int say(const char* name) {
    calls.emplace_back(name);
    const auto error = errors.find(name);
    return error == errors.end() ? 0 : error->second;
  }
};
inline Cuda& cuda() {
  static Cuda the_one;
  return the_one;
}

}  // namespace sirtaki::device::played

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNotReady ? "not ready" : "an error";
}
inline cudaError_t cudaGetLastError() {
  return sirtaki::device::played::cuda().say("GetLastError");
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 3;
  return sirtaki::device::played::cuda().say("GetDeviceCount");
}
inline cudaError_t cudaSetDevice(int device) {
  sirtaki::device::played::cuda().device = device;
  return sirtaki::device::played::cuda().say("SetDevice");
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = sirtaki::device::played::cuda().device;
  return sirtaki::device::played::cuda().say("GetDevice");
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  sirtaki::device::played::cuda().capture_mode = *mode;
  *mode = cudaStreamCaptureModeGlobal;
  return sirtaki::device::played::cuda().say("ThreadExchangeStreamCaptureMode");
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return sirtaki::device::played::cuda().say("DeviceGetStreamPriorityRange");
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  *stream = reinterpret_cast<cudaStream_t>(&sirtaki::device::played::cuda());
  sirtaki::device::played::cuda().flags = flags;
  sirtaki::device::played::cuda().priority = priority;
  return sirtaki::device::played::cuda().say("StreamCreateWithPriority");
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) {
  return sirtaki::device::played::cuda().say("StreamDestroy");
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = reinterpret_cast<cudaEvent_t>(&sirtaki::device::played::cuda());
  sirtaki::device::played::cuda().flags = flags;
  return sirtaki::device::played::cuda().say("EventCreateWithFlags");
}
inline cudaError_t cudaEventDestroy(cudaEvent_t) {
  return sirtaki::device::played::cuda().say("EventDestroy");
}
inline cudaError_t cudaMalloc(void** data, std::size_t) {
  *data = &sirtaki::device::played::cuda();
  return sirtaki::device::played::cuda().say("Malloc");
}
inline cudaError_t cudaFree(void*) {
  return sirtaki::device::played::cuda().say("Free");
}
inline cudaError_t cudaHostAlloc(void** data, std::size_t, unsigned) {
  *data = &sirtaki::device::played::cuda();
  return sirtaki::device::played::cuda().say("HostAlloc");
}
inline cudaError_t cudaFreeHost(void*) {
  return sirtaki::device::played::cuda().say("FreeHost");
}
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return sirtaki::device::played::cuda().say("EventRecord");
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return sirtaki::device::played::cuda().say("StreamWaitEvent");
}
inline cudaError_t cudaEventQuery(cudaEvent_t) {
  return sirtaki::device::played::cuda().say("EventQuery");
}
inline cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind kind, cudaStream_t) {
  return sirtaki::device::played::cuda().say(kind == cudaMemcpyDefault ? "MemcpyAsync" : "a copy of one kind");
}
// NOLINTEND(readability-identifier-naming)
