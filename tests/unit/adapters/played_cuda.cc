// A library that loads like the CUDA plug-in, over a GPU that is played: its memory is the host's, and work is done
// when it is queued. One device, number 0.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda_kernels.h"
#include "runtime/device/cuda_calls.h"

namespace {

using sirtaki::device::cuda::DeviceCalls;
using sirtaki::kernels::cuda::Kernels;

int make(void** handle) {
  *handle = std::malloc(1);
  return 0;
}
int destroy(void* handle) {
  std::free(handle);
  return 0;
}
int allocate(void** data, std::size_t bytes) {
  *data = std::malloc(bytes);
  return 0;
}

// What the device was told of each stream of somebody else's.
struct Told {
  std::mutex mutex;
  std::map<void*, std::pair<int, int>> streams;  // recorded, made to wait
};
Told& told() {
  static Told the_one;
  return the_one;
}

constexpr DeviceCalls kCalls{
    .version = sirtaki::device::cuda::kCallsVersion,
    .error_text = [](int /*code*/) { return "played"; },
    .count_devices =
        [](int* count) {
          *count = 1;
          return 0;
        },
    .enter_thread = [](int /*device*/) { return 0; },
    .visit_thread = [](int /*device*/, int* /*device_before*/, int* /*mode_before*/) { return 0; },
    .leave_thread = [](int /*device_before*/, int /*mode_before*/) { return 0; },
    .make_stream = [](bool /*high_priority*/, void** stream) { return make(stream); },
    .destroy_stream = destroy,
    .make_event = make,
    .destroy_event = destroy,
    .allocate_device = allocate,
    .release_device = destroy,
    .allocate_pinned = allocate,
    .release_pinned = destroy,
    .record =
        [](void* /*event*/, void* stream) {
          const std::lock_guard lock(told().mutex);
          ++told().streams[stream].first;
          return 0;
        },
    .wait =
        [](void* stream, void* /*event*/) {
          const std::lock_guard lock(told().mutex);
          ++told().streams[stream].second;
          return 0;
        },
    .query =
        [](void* /*event*/, bool* done) {
          *done = true;
          return 0;
        },
    .copy =
        [](void* /*stream*/, void* to, const void* from, std::size_t bytes) {
          std::memcpy(to, from, bytes);
          return 0;
        },
};

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
