// A fake GPU for libraries that load like the CUDA plug-in: one device whose memory is host memory, and which executes
// work when it is queued.
//
// Threads: any. Tests in one process use tests/unit/device/fake_device.h, which has streams.
#pragma once

#include <cstdlib>
#include <cstring>

#include "runtime/device/cuda_calls.h"

namespace sirtaki::device::fake {

inline int make(void** handle) {
  *handle = std::malloc(1);
  return 0;
}
inline int destroy(void* handle) {
  std::free(handle);
  return 0;
}
inline int allocate(void** data, std::size_t bytes) {
  *data = std::malloc(bytes);
  return 0;
}
inline int nothing(void* /*event or stream*/, void* /*the other*/) {
  return 0;
}

constexpr cuda::DeviceCalls calls() {
  return {
      .version = cuda::kCallsVersion,
      .error_text = [](int /*code*/) { return "fake"; },
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
      .record = nothing,
      .record_all = [](void* /*event*/) { return 0; },
      .wait = nothing,
      .query =
          [](void* /*event*/, bool* done) {
            *done = true;
            return 0;
          },
      .copy =
          [](void* /*stream*/, void* to, const void* from, std::size_t bytes) {
            std::memmove(to, from, bytes);
            return 0;
          },
  };
}

}  // namespace sirtaki::device::fake
