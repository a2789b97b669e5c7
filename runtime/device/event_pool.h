// EventPool: events created at start-up and reused, because creating one later may synchronize with the device.
//
// Owner: the class that records the events; the pool must outlive them. Not thread-safe. Not for marks on streams of
// the program (mark_pool.h).
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/device/device_api.h"

namespace sirtaki::device {

class EventPool;

// An event on loan. Destruction returns it to the pool; no stream or poller may depend on it then.
class PooledEvent {
 public:
  PooledEvent() = default;
  PooledEvent(EventPool* pool, Event event) : pool_(pool), event_(event) {}
  PooledEvent(PooledEvent&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), event_(std::exchange(other.event_, {})) {}
  PooledEvent& operator=(PooledEvent&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~PooledEvent();

  Event get() const { return event_; }
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  EventPool* pool_ = nullptr;
  Event event_;
};

class EventPool {
 public:
  static Result<std::unique_ptr<EventPool>> create(DeviceApi& device, std::size_t count);
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();

  // Returns a free event; kExhausted if there is none.
  Result<PooledEvent> take();
  std::size_t left() const { return free_.size(); }

 private:
  friend class PooledEvent;
  explicit EventPool(DeviceApi& device) : device_(device) {}

  DeviceApi& device_;
  std::vector<Event> free_;
};

}  // namespace sirtaki::device
