// DeviceApi: the interface to a GPU: streams, events, memory, copies and kernels. It exposes no CUDA type.
//
// Implemented by CudaDevice over the CUDA plug-in (cuda_device.h), and by a fake in tests. No method blocks until the
// device has finished work; callers poll done().
// Owner: the opener, one object for each GPU; it must outlive everything made from it.
// Threads: any thread that has called enter_thread(), or is between visit() and leave().
// Creating streams, events or memory may synchronize with the device inside CUDA. Create them at start-up, before work
// is in flight, and reuse them (event_pool.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_kernels.h"
#include "runtime/base/status.h"

namespace sirtaki::device {

// Non-owning handles of streams and events that a framework or DeviceApi has made.
struct Stream {
  void* native = nullptr;  // a cudaStream_t; null is the default stream
  bool operator==(const Stream&) const = default;
};
struct Event {
  void* native = nullptr;  // a cudaEvent_t
  explicit operator bool() const { return native != nullptr; }
  bool operator==(const Event&) const = default;
};

// The state of a thread before visit(), for leave().
struct Before {
  int device = -1;
  int capture_mode = 0;
};

enum class Priority : std::uint8_t { kNormal, kHigh };
// kPinned: page-locked host memory, which the device copies directly.
enum class Place : std::uint8_t { kDevice, kPinned };

class DeviceApi {
 public:
  DeviceApi() = default;
  DeviceApi(const DeviceApi&) = delete;
  DeviceApi& operator=(const DeviceApi&) = delete;
  virtual ~DeviceApi() = default;

  // Makes the device current in the calling thread, and keeps its calls out of graphs that other threads capture. Call
  // it once in each thread, before anything else.
  virtual Status enter_thread() = 0;
  // Does the same temporarily on a thread of the program; pass the result to leave(), which restores the thread. See
  // Visit.
  virtual Result<Before> visit() = 0;
  virtual void leave(const Before& before) = 0;
  // Returns the launch functions of kernels for streams of this device.
  virtual const kernels::cuda::Kernels& kernels() const = 0;
  // Returns the reason if no kernel can run on this device, for which the plug-in may lack machine code; all else
  // works.
  virtual Status kernels_ready() const = 0;

  // ---- creation, at start-up; kUnavailable with the text of the device ----

  virtual Result<Stream> make_stream(Priority priority) = 0;
  virtual Result<Event> make_event() = 0;
  // kExhausted if there is too little memory; everything else goes on.
  virtual Result<std::byte*> allocate(Place place, std::size_t bytes) = 0;

  // ---- destruction, when nothing uses the objects any more ----

  virtual void destroy(Stream stream) = 0;
  virtual void destroy(Event event) = 0;
  virtual void release(Place place, std::byte* data) = 0;

  // ---- work ----

  // Records `event` on `stream`: the event completes after all work queued there so far.
  virtual Status record(Event event, Stream stream) = 0;
  // Records `event` behind all work of the device so far, that of the program included; drivers before CUDA 12.5 leave
  // out streams that do not wait for the default one (cudaStreamNonBlocking).
  virtual Status record_all(Event event) = 0;
  // Makes work queued on `stream` from now on wait for the last recording of `event`.
  virtual Status wait(Stream stream, Event event) = 0;
  // Returns true if the last recording of `event` is complete or there is none. An error means that the device failed.
  virtual Result<bool> done(Event event) = 0;
  // Queues a copy; each side is host or device memory.
  virtual Status copy(Stream stream, std::byte* to, const std::byte* from, std::size_t bytes) = 0;
};

// Lets a thread of the program use the device during its lifetime, provided that status() is ok.
class Visit {
 public:
  explicit Visit(DeviceApi& device) : device_(device), before_(device.visit()) {}
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  ~Visit() {
    if (before_) {
      device_.leave(*before_);
    }
  }
  Status status() const { return before_.status(); }

 private:
  DeviceApi& device_;
  const Result<Before> before_;
};

}  // namespace sirtaki::device
