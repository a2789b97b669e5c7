#include "runtime/device/event_pool.h"

namespace sirtaki::device {

PooledEvent::~PooledEvent() {
  if (pool_ != nullptr) {
    pool_->free_.push_back(event_);
  }
}

Result<std::unique_ptr<EventPool>> EventPool::create(DeviceApi& device, std::size_t count) {
  std::unique_ptr<EventPool> pool(new EventPool(device));
  pool->free_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    SRT_ASSIGN(const Event event, device.make_event());
    pool->free_.push_back(event);
  }
  return pool;
}

EventPool::~EventPool() {
  for (const Event event : free_) {
    device_.destroy(event);
  }
}

Result<PooledEvent> EventPool::take() {
  if (free_.empty()) {
    return Status(Code::kExhausted, "all events of the pool are in use");
  }
  // Oldest first, so that an event rests as long as possible before its next recording.
  PooledEvent event(this, free_.front());
  free_.erase(free_.begin());
  return event;
}

}  // namespace sirtaki::device
