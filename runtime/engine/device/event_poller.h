// EventPoller: tells when a stream of the runtime's has done what it was given.
//
// In the order in which it was asked; a timer asks for events while somebody waits, so an idle job sleeps. Loop thread.
// Owned by DeviceTransport, before whose end end() is called. Not for: streams of the program's, of which a tensor may
// come much later than the one that was handed over after it (device_stage.h).
#pragma once

#include <deque>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/engine/device/device_stage.h"

namespace sirtaki::engine {

struct EventPollerOptions {
  // The longest that work of the runtime's may take on the device.
  Duration deadline = std::chrono::minutes(30);
  // Events are asked for after the first time, then twice as late each time up to the last.
  Duration first_poll = std::chrono::microseconds(20);
  Duration last_poll = std::chrono::milliseconds(1);
};

class EventPoller {
 public:
  // Both outlive it.
  EventPoller(Loop& loop, DeviceStage& stage, const EventPollerOptions& options)
      : loop_(loop), stage_(stage), options_(options), pause_(options.first_poll) {}
  EventPoller(const EventPoller&) = delete;
  EventPoller& operator=(const EventPoller&) = delete;
  ~EventPoller() { loop_.cancel(timer_); }

  // `then` once, later: ok when `mark` has come, else why nobody will know. Marks are of one stream. An error instead
  // of a mark is one of the device, and so is one that asking for it meets.
  void when(Result<device::Mark> mark, Done then);
  // Who waits, and who will, gets `cause`; the first one is kept. From within, in the order in which they came.
  void end(const Status& cause);

 private:
  struct Waiter {
    device::Mark mark;
    Done then;
    TimePoint deadline;
  };

  void poll_later();
  void check_finite();
  Status poll_all();

  Loop& loop_;
  DeviceStage& stage_;
  const EventPollerOptions options_;
  std::deque<Waiter> waiters_;
  Status ended_;
  TimerId timer_;
  Duration pause_;
};

}  // namespace sirtaki::engine
