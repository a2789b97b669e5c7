// EventPool: events made at the start and lent one by one, since making one later may wait for the device.
//
// Owned by: whoever records them. Threads: one. It outlives what it lends. Not for: events of others.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/device/device_api.h"

namespace sirtaki::device {

class EventPool;

// Goes back when it is destroyed; then nobody may wait for it any more.
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

  // kExhausted when all are lent.
  Result<PooledEvent> take();
  std::size_t left() const { return free_.size(); }

 private:
  friend class PooledEvent;
  explicit EventPool(DeviceApi& device) : device_(device) {}

  DeviceApi& device_;
  std::vector<Event> free_;
};

}  // namespace sirtaki::device
