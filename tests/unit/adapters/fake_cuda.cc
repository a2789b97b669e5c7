// A library that loads like the CUDA plug-in, with a fake GPU, device 0. Its memory is host memory, and work runs as
// soon as it is queued.
#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda_kernels.h"
#include "runtime/device/cuda_calls.h"
#include "tests/device/fake_calls.h"

namespace {

using sirtaki::device::cuda::DeviceCalls;
using sirtaki::kernels::cuda::Kernels;

// Number of events recorded on each stream of the program, and of waits queued to it.
struct StreamCalls {
  std::mutex mutex;
  std::map<void*, std::pair<int, int>> streams;  // numbers of recorded events and of queued waits
};
StreamCalls& stream_calls() {
  static StreamCalls the_one;
  return the_one;
}

constexpr DeviceCalls calls() {
  DeviceCalls calls = sirtaki::device::fake::calls();
  calls.record = [](void* /*event*/, void* stream) {
    const std::lock_guard lock(stream_calls().mutex);
    ++stream_calls().streams[stream].first;
    return 0;
  };
  calls.wait = [](void* stream, void* /*event*/) {
    const std::lock_guard lock(stream_calls().mutex);
    ++stream_calls().streams[stream].second;
    return 0;
  };
  return calls;
}
constexpr DeviceCalls kCalls = calls();

constexpr Kernels kernels() {
  Kernels kernels{};
  kernels.version = sirtaki::kernels::cuda::kKernelsVersion;
  kernels.load = [] { return sirtaki::kernels::cuda::Launch{}; };
  return kernels;
}
constexpr Kernels kKernels = kernels();

}  // namespace

// Returns the numbers of events recorded on `stream` and of waits queued to it.
extern "C" __attribute__((visibility("default"))) void fake_cuda_counts(void* stream, int* recorded, int* waits) {
  const std::lock_guard lock(stream_calls().mutex);
  *recorded = stream_calls().streams[stream].first;
  *waits = stream_calls().streams[stream].second;
}

const DeviceCalls* sirtaki_cuda_device() {
  return &kCalls;
}
const Kernels* sirtaki_cuda_kernels() {
  return &kKernels;
}
