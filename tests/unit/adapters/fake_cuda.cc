// A library that loads like the CUDA plug-in, over a GPU that is played: its memory is the host's, and work is done
// when it is queued. One device, number 0.
#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda_kernels.h"
#include "runtime/device/cuda_calls.h"
#include "tests/device/played_calls.h"

namespace {

using sirtaki::device::cuda::DeviceCalls;
using sirtaki::kernels::cuda::Kernels;

// What the device was told of each stream of somebody else's.
struct Told {
  std::mutex mutex;
  std::map<void*, std::pair<int, int>> streams;  // recorded, made to wait
};
Told& told() {
  static Told the_one;
  return the_one;
}

constexpr DeviceCalls calls() {
  DeviceCalls calls = sirtaki::device::played::calls();
  calls.record = [](void* /*event*/, void* stream) {
    const std::lock_guard lock(told().mutex);
    ++told().streams[stream].first;
    return 0;
  };
  calls.wait = [](void* stream, void* /*event*/) {
    const std::lock_guard lock(told().mutex);
    ++told().streams[stream].second;
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

// How often `stream` was recorded, and made to wait.
extern "C" __attribute__((visibility("default"))) void played_cuda_told(void* stream, int* recorded, int* waits) {
  const std::lock_guard lock(told().mutex);
  *recorded = told().streams[stream].first;
  *waits = told().streams[stream].second;
}

const DeviceCalls* sirtaki_cuda_device() {
  return &kCalls;
}
const Kernels* sirtaki_cuda_kernels() {
  return &kKernels;
}
