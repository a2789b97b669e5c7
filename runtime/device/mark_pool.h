// MarkPool: events that say how far a stream of the program's had been fed when one of its threads handed a tensor
// over.
//
// Recorded by the thread that hands it over: what the program queues afterwards is not waited for. Events are made when
// none is left, and kept.
// Owned by: whoever waits for the marks. Threads: any. It outlives its marks, and its own end belongs to a thread that
// may use the device. Not for: events of work of one's own (event_pool.h).
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "runtime/device/device_api.h"

namespace sirtaki::device {

class MarkPool;

// Goes back when it is destroyed; who was told to wait for it before does so all the same.
class Mark {
 public:
  Mark() = default;
  Mark(MarkPool* pool, Event event) : pool_(pool), event_(event) {}
  Mark(Mark&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), event_(std::exchange(other.event_, {})) {}
  Mark& operator=(Mark&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~Mark();

  Event event() const { return event_; }

 private:
  MarkPool* pool_ = nullptr;
  Event event_;
};

class MarkPool {
 public:
  explicit MarkPool(DeviceApi& device) : device_(device) {}
  MarkPool(const MarkPool&) = delete;
  MarkPool& operator=(const MarkPool&) = delete;
  ~MarkPool();

  // On any thread: happens when `stream` has done what it was given so far. An error is one of the device.
  Result<Mark> record(Stream stream);
  // The same on a thread that has entered the device.
  Result<Mark> record_here(Stream stream);

 private:
  friend class Mark;
  Result<Event> take();
  void give_back(Event event);

  DeviceApi& device_;
  std::mutex mutex_;         // the program's threads record, the loop gives back
  std::vector<Event> made_;  // guarded by mutex_, as is the next
  std::vector<Event> free_;
};

}  // namespace sirtaki::device
