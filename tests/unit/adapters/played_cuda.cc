// A library that loads like the CUDA plug-in, over a GPU that is played: its memory is the host's, and work is done
// when it is queued. One device, number 0.
#include <cstdint>
#include <cstdlib>
#include <cstring>

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
    .record = [](void* /*event*/, void* /*stream*/) { return 0; },
    .wait = [](void* /*stream*/, void* /*event*/) { return 0; },
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

const DeviceCalls* sirtaki_cuda_device() {
  return &kCalls;
}
const Kernels* sirtaki_cuda_kernels() {
  return &kKernels;
}
