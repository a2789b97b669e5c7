// SimClock and SimLoop: many loops in one thread with one virtual clock and a seeded order.
//
// Each loop runs its tasks in the order in which they were posted, as a real loop does; the seed chooses the loop that
// runs next. Time moves only when no loop has a task to run.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "runtime/base/loop.h"

namespace sirtaki::world {

class SimLoop;

class SimClock {
 public:
  explicit SimClock(std::uint64_t seed) : random_(seed) {}

  std::unique_ptr<SimLoop> make_loop();
  TimePoint now() const { return now_; }
  std::mt19937_64& random() { return random_; }

  // Runs one task of one loop, or one step of time. Returns false when no task and no timer is left.
  bool step();
  // Returns the loop whose task the last step has run; null after a step of time.
  const SimLoop* last() const { return last_; }

 private:
  friend class SimLoop;
  std::mt19937_64 random_;
  TimePoint now_ = TimePoint(std::chrono::seconds(1));
  std::vector<SimLoop*> ready_;  // loops that have a task to run
  std::map<std::pair<TimePoint, std::uint64_t>, std::pair<SimLoop*, Task>> timers_;
  std::uint64_t next_timer_ = 1;
  SimLoop* running_ = nullptr;
  const SimLoop* last_ = nullptr;
};

class SimLoop final : public Loop {
 public:
  ~SimLoop() override;
  TimePoint now() const override { return clock_.now_; }
  bool in_loop() const override { return clock_.running_ == this; }
  void post(Task task) override;
  TimerId after(Duration delay, Task task) override;  // may be called from other loops: a message in transit
  void cancel(TimerId timer) override;

  // Runs `task` inline as if on this loop; for creating and freeing objects that belong to it.
  template <class F>
  void run_inline(F task) {
    SimLoop* const before = std::exchange(clock_.running_, this);
    task();
    clock_.running_ = before;
  }

  // Drops all tasks and accepts no more: the process of the rank is dead.
  void kill();

 private:
  friend class SimClock;
  void leave_ready_list();
  explicit SimLoop(SimClock& clock) : clock_(clock) {}
  SimClock& clock_;
  std::deque<Task> ready_;
  std::size_t place_ = 0;  // index in the list of the clock, while ready_ is not empty
  std::map<std::uint64_t, TimePoint> own_timers_;
  bool dead_ = false;
};

}  // namespace sirtaki::world
