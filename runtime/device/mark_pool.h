// MarkPool: events that mark the end of the work on a stream of the program at the moment when the program submits a
// tensor.
//
// The submitting thread records the mark, so the runtime does not wait for later work of the program. Events are
// created when none is free, and reused.
// Owner: the class that waits for the marks; the pool must outlive them. Thread-safe, but destroy it on a thread that
// may use the device. Not for the work of the runtime itself (event_pool.h).
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "runtime/device/device_api.h"

namespace sirtaki::device {

class MarkPool;

// A recorded event on loan. Destruction returns it; streams that already wait for it are not affected.
class Mark {
 public:
  Mark() = default;
  Mark(MarkPool* pool, Event event, Stream stream) : pool_(pool), event_(event), stream_(stream) {}
  Mark(Mark&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), event_(std::exchange(other.event_, {})), stream_(other.stream_) {}
  Mark& operator=(Mark&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(event_, other.event_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Mark();

  // No event: the mark was never recorded.
  Event event() const { return event_; }
  // Returns the marked stream. Its marks pass in the order of their recording.
  Stream stream() const { return stream_; }

 private:
  MarkPool* pool_ = nullptr;
  Event event_;
  Stream stream_;
};

class MarkPool {
 public:
  explicit MarkPool(DeviceApi& device) : device_(device) {}
  MarkPool(const MarkPool&) = delete;
  MarkPool& operator=(const MarkPool&) = delete;
  ~MarkPool();

  // Marks the work queued on `stream` so far. Callable on any thread. An error means that the device failed.
  Result<Mark> record(Stream stream);
  // Does the same on a thread that has entered the device.
  Result<Mark> record_here(Stream stream);
  // Marks all work of the device so far (DeviceApi::record_all), on a thread that has entered the device.
  Result<Mark> record_all_here();

 private:
  friend class Mark;
  Result<Event> take();
  void give_back(Event event);

  DeviceApi& device_;
  std::mutex mutex_;         // threads of the program record, the loop returns events
  std::vector<Event> made_;  // all events; guarded by mutex_, as is free_
  std::vector<Event> free_;
};

}  // namespace sirtaki::device
