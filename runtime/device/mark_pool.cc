#include "runtime/device/mark_pool.h"

namespace sirtaki::device {

Mark::~Mark() {
  if (pool_ != nullptr) {
    pool_->give_back(event_);
  }
}

MarkPool::~MarkPool() {
  for (const Event event : made_) {
    device_.destroy(event);
  }
}

Result<Mark> MarkPool::record(Stream stream) {
  const Visit visit(device_);
  SRT_TRY(visit.status());
  return record_here(stream);
}

Result<Mark> MarkPool::record_here(Stream stream) {
  SRT_ASSIGN(const Event event, take());
  Mark mark(this, event, stream);
  SRT_TRY(device_.record(event, stream));
  return mark;
}

Result<Mark> MarkPool::record_all_here() {
  SRT_ASSIGN(const Event event, take());
  Mark mark(this, event, {});
  SRT_TRY(device_.record_all(event));
  return mark;
}

Result<Event> MarkPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    SRT_ASSIGN(const Event event, device_.make_event());
    made_.push_back(event);
    return event;
  }
  const Event event = free_.back();
  free_.pop_back();
  return event;
}

void MarkPool::give_back(Event event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

}  // namespace sirtaki::device
