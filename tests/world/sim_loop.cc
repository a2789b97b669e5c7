#include "tests/world/sim_loop.h"

#include <algorithm>
#include <utility>

namespace sirtaki::world {

std::unique_ptr<SimLoop> SimClock::make_loop() {
  return std::unique_ptr<SimLoop>(new SimLoop(*this));
}

bool SimClock::step() {
  if (!ready_.empty()) {
    SimLoop* loop = ready_[random_() % ready_.size()];
    Task task = std::move(loop->ready_.front());
    loop->ready_.pop_front();
    if (loop->ready_.empty()) {
      loop->leave_ready_list();
    }
    running_ = loop;
    last_ = loop;
    task();
    running_ = nullptr;
    return true;
  }
  last_ = nullptr;
  if (timers_.empty()) {
    return false;
  }
  auto node = timers_.extract(timers_.begin());
  now_ = std::max(now_, node.key().first);
  auto& [loop, task] = node.mapped();
  loop->own_timers_.erase(node.key().second);
  loop->post(std::move(task));
  return true;
}

SimLoop::~SimLoop() {
  kill();
}

void SimLoop::post(Task task) {
  if (dead_) {
    return;
  }
  if (ready_.empty()) {
    place_ = clock_.ready_.size();
    clock_.ready_.push_back(this);
  }
  ready_.push_back(std::move(task));
}

void SimLoop::leave_ready_list() {
  clock_.ready_[place_] = clock_.ready_.back();
  clock_.ready_[place_]->place_ = place_;
  clock_.ready_.pop_back();
}

TimerId SimLoop::after(Duration delay, Task task) {
  if (dead_) {
    return {};
  }
  const std::uint64_t id = clock_.next_timer_++;
  const TimePoint at = clock_.now_ + std::max(delay, Duration(0));
  own_timers_[id] = at;
  clock_.timers_.emplace(std::pair(at, id), std::pair(this, std::move(task)));
  return TimerId(id);
}

void SimLoop::cancel(TimerId timer) {
  const auto it = own_timers_.find(timer.value);
  if (it != own_timers_.end()) {
    clock_.timers_.erase({it->second, timer.value});
    own_timers_.erase(it);
  }
}

void SimLoop::kill() {
  dead_ = true;
  while (!own_timers_.empty()) {
    cancel(TimerId(own_timers_.begin()->first));
  }
  // The destructor of a task may post; such tasks are dropped, too.
  std::deque<Task> dropped;
  dropped.swap(ready_);
  if (!dropped.empty()) {
    leave_ready_list();
  }
}

}  // namespace sirtaki::world
