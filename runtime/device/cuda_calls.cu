#include "runtime/device/cuda_calls.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace sirtaki::device::cuda {
namespace {

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t event_of(void* event) {
  return static_cast<cudaEvent_t>(event);
}

const char* error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

int count_devices(int* count) {
  return cudaGetDeviceCount(count);
}

int enter_thread(int device) {
  const cudaError_t error = cudaSetDevice(device);
  if (error != cudaSuccess) {
    return error;
  }
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  return cudaThreadExchangeStreamCaptureMode(&mode);
}

// The device is set only if it differs, because cudaSetDevice() may create a context.
int visit_thread(int device, int* device_before, int* mode_before) {
  cudaError_t error = cudaGetDevice(device_before);
  if (error == cudaSuccess && *device_before != device) {
    error = cudaSetDevice(device);
  }
  if (error != cudaSuccess) {
    return error;
  }
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  error = cudaThreadExchangeStreamCaptureMode(&mode);
  *mode_before = mode;
  if (error != cudaSuccess && *device_before != device) {
    cudaSetDevice(*device_before);  // the caller does not leave a device that it could not enter
  }
  return error;
}
int leave_thread(int device_before, int mode_before) {
  auto mode = static_cast<cudaStreamCaptureMode>(mode_before);
  const cudaError_t exchanged = cudaThreadExchangeStreamCaptureMode(&mode);
  int device = -1;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess && device != device_before) {
    error = cudaSetDevice(device_before);
  }
  return exchanged == cudaSuccess ? error : exchanged;
}

static_assert(kOutOfMemory == cudaErrorMemoryAllocation);

// The caller can do without the memory, so the program must not find the error in this thread.
int forget_shortage(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
  }
  return error;
}

int make_stream(bool high_priority, void** stream) {
  int least = 0;
  int greatest = 0;
  if (const cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest); error != cudaSuccess) {
    return error;
  }
  cudaStream_t made = nullptr;
  const cudaError_t error =
      cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, high_priority ? greatest : least);
  *stream = made;
  return forget_shortage(error);
}
int destroy_stream(void* stream) {
  return cudaStreamDestroy(stream_of(stream));
}

int make_event(void** event) {
  cudaEvent_t made = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
  *event = made;
  return forget_shortage(error);
}
int destroy_event(void* event) {
  return cudaEventDestroy(event_of(event));
}

int allocate_device(void** data, std::size_t bytes) {
  return forget_shortage(cudaMalloc(data, bytes));
}
int release_device(void* data) {
  return cudaFree(data);
}
int allocate_pinned(void** data, std::size_t bytes) {
  return forget_shortage(cudaHostAlloc(data, bytes, cudaHostAllocDefault));
}
int release_pinned(void* data) {
  return cudaFreeHost(data);
}

int record(void* event, void* stream) {
  return cudaEventRecord(event_of(event), stream_of(stream));
}

// The driver and the runtime have the same numbers for these errors, from cudaErrorStreamCaptureUnsupported to
// cudaErrorStreamCaptureWrongThread.
bool met_a_capture(int error) {
  return error >= 900 && error <= 908;
}

// cuCtxRecordEvent() of the driver records behind all streams, but older toolkits and drivers do not know it. Work on
// the default stream waits for all streams but those with cudaStreamNonBlocking.
int record_all(void* event) {
  // The runtime has loaded it.
  if (void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) {
    auto* const current = reinterpret_cast<int (*)(void** context)>(dlsym(driver, "cuCtxGetCurrent"));
    auto* const record = reinterpret_cast<int (*)(void* context, void* event)>(dlsym(driver, "cuCtxRecordEvent"));
    void* context = nullptr;
    int error = cudaErrorNotSupported;
    if (current != nullptr && record != nullptr && current(&context) == cudaSuccess) {
      error = record(context, event);
    }
    dlclose(driver);
    // During a graph capture, a record on the default stream would meet the same one.
    if (error == cudaSuccess || met_a_capture(error)) {
      return error;
    }
  }
  return cudaEventRecord(event_of(event), nullptr);
}
int wait(void* stream, void* event) {
  return cudaStreamWaitEvent(stream_of(stream), event_of(event), 0);
}
int query(void* event, bool* done) {
  const cudaError_t error = cudaEventQuery(event_of(event));
  *done = error == cudaSuccess;
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // clears the sticky error, which the program would otherwise see in this thread
    return cudaSuccess;
  }
  return error;
}

int copy(void* stream, void* to, const void* from, std::size_t bytes) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream));
}

constexpr DeviceCalls kCalls{
    .version = kCallsVersion,
    .error_text = error_text,
    .count_devices = count_devices,
    .enter_thread = enter_thread,
    .visit_thread = visit_thread,
    .leave_thread = leave_thread,
    .make_stream = make_stream,
    .destroy_stream = destroy_stream,
    .make_event = make_event,
    .destroy_event = destroy_event,
    .allocate_device = allocate_device,
    .release_device = release_device,
    .allocate_pinned = allocate_pinned,
    .release_pinned = release_pinned,
    .record = record,
    .record_all = record_all,
    .wait = wait,
    .query = query,
    .copy = copy,
};

}  // namespace
}  // namespace sirtaki::device::cuda

const sirtaki::device::cuda::DeviceCalls* sirtaki_cuda_device() {
  return &sirtaki::device::cuda::kCalls;
}
