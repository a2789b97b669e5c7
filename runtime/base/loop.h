// Loop: executor, clock and timers of one thread behind an interface, so that a simulator can replace time and order.
//
// Owned by: the owner of the thread (Session, CoordinatorServer, SimWorld). Objects of a loop are created, used and
// destroyed on its thread, unless a comment says otherwise. Not for: blocking work.
#pragma once

#include <cstdint>

#include "runtime/base/task.h"
#include "runtime/base/types.h"

namespace sirtaki {

using TimerId = Id<struct TimerTag, std::uint64_t>;  // 0: no timer

class Loop {
 public:
  Loop() = default;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  virtual ~Loop() = default;

  virtual TimePoint now() const = 0;  // any thread
  virtual bool in_loop() const = 0;   // any thread
  virtual void post(Task task) = 0;   // any thread; runs later, never inline; FIFO per posting thread
  virtual TimerId after(Duration delay, Task task) = 0;  // loop thread only; fires once
  virtual void cancel(TimerId timer) = 0;                // loop thread only; unknown or fired timers are ignored
};

}  // namespace sirtaki
