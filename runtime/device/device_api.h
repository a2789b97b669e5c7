// DeviceApi: what the runtime asks of a GPU: streams, events, memory, copies, kernels. Shows nothing of CUDA.
//
// For: collectives of device memory and what feeds them. Implemented over the CUDA plug-in (cuda_device.h), and by a
// fake for tests. Nothing here waits for the device: whoever has to know asks done().
// Owned by: whoever opens the device, one for each GPU; it outlives what is made of it.
// Threads: any that has called enter_thread(), or is between visit() and leave().
// What may wait for the device inside CUDA (streams, events, memory) is made at the start, before anything is in
// flight: event_pool.h and arena.h allocate_shared it afterwards.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_kernels.h"
#include "runtime/base/status.h"

namespace sirtaki::device {

// Handles, of a framework's or of DeviceApi's making; they own nothing.
struct Stream {
  void* native = nullptr;  // a cudaStream_t; null is the default stream
  bool operator==(const Stream&) const = default;
};
struct Event {
  void* native = nullptr;  // a cudaEvent_t
  explicit operator bool() const { return native != nullptr; }
  bool operator==(const Event&) const = default;
};

// What a thread had before visit().
struct Before {
  int device = -1;
  int capture_mode = 0;
};

enum class Priority : std::uint8_t { kNormal, kHigh };
// kPinned: memory of the host that copies reach directly.
enum class Place : std::uint8_t { kDevice, kPinned };

class DeviceApi {
 public:
  DeviceApi() = default;
  DeviceApi(const DeviceApi&) = delete;
  DeviceApi& operator=(const DeviceApi&) = delete;
  virtual ~DeviceApi() = default;

  // Each thread once, before anything else: makes the device current, and keeps what the thread calls out of graphs
  // that other threads capture.
  virtual Status enter_thread() = 0;
  // The same for a moment, on a thread of the program's: until leave(), which takes what this gives. See Visit.
  virtual Result<Before> visit() = 0;
  virtual void leave(const Before& before) = 0;
  // Launch functions for streams of this device.
  virtual const kernels::cuda::Kernels& kernels() const = 0;

  // At the start. kUnavailable with what the device says.
  virtual Result<Stream> make_stream(Priority priority) = 0;
  virtual Result<Event> make_event() = 0;
  virtual Result<std::byte*> allocate(Place place, std::size_t bytes) = 0;
  // At the end, when nothing uses them any more.
  virtual void destroy(Stream stream) = 0;
  virtual void destroy(Event event) = 0;
  virtual void release(Place place, std::byte* data) = 0;

  // `event` happens when the stream has done all that it was given before.
  virtual Status record(Event event, Stream stream) = 0;
  // The stream does nothing that it is given later before `event`, as last recorded, has happened.
  virtual Status wait(Stream stream, Event event) = 0;
  // Whether `event`, as last recorded, has happened; one that never was recorded has. An error is one of the device.
  virtual Result<bool> done(Event event) = 0;
  // Between any two places.
  virtual Status copy(Stream stream, std::byte* to, const std::byte* from, std::size_t bytes) = 0;
};

// A thread of the program's may use the device while this lives, if status() is ok.
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
