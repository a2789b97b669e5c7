// EventPoller: reports when a stream of the runtime has completed its work.
//
// Marks are reported in the order of the calls; a timer polls while there are waiters, so an idle job sleeps.
// Owner: DeviceTransport, which calls end() first. Thread: loop. Not for streams of the program, whose tensors may
// become ready in another order than submitted (device_stage.h).
#pragma once

#include <deque>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/engine/device/device_stage.h"

namespace sirtaki::engine {

struct EventPollerOptions {
  // Limit for work of the runtime on the device.
  Duration deadline = std::chrono::minutes(30);
  // Polls begin at first_poll; each pause doubles up to last_poll.
  Duration first_poll = std::chrono::microseconds(20);
  Duration last_poll = std::chrono::microseconds(100);
};

class EventPoller {
 public:
  // `loop` and `stage` must outlive the poller.
  EventPoller(Loop& loop, DeviceStage& stage, const EventPollerOptions& options)
      : loop_(loop), stage_(stage), options_(options), pause_(options.first_poll) {}
  EventPoller(const EventPoller&) = delete;
  EventPoller& operator=(const EventPoller&) = delete;
  ~EventPoller() { loop_.cancel(timer_); }

  // Calls `then` exactly once, later: ok when `mark` has completed, else with the end of the poller. All marks must be
  // of one stream. An error in `mark`, or while polling it, means that the device failed.
  void when(Result<device::Mark> mark, Done then);
  // Ends current and later waiters with `cause`; the first cause is kept. Calls current waiters inline, in order.
  void end(const Status& cause);

 private:
  struct Waiter {
    device::Mark mark;
    Done then;
    TimePoint deadline;
  };

  void poll_later();
  void poll();
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
