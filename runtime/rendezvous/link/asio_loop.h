// AsioLoop: implementation of Loop, a named thread that runs one Boost.Asio io_context. Sleeps in epoll when idle.
//
// Owned by: Session (its coordinator loop) and CoordinatorServer / Client (their control thread). The destructor stops
// the loop and joins its thread. The thread blocks signals, so that Ctrl-C reaches the main thread. The first exception
// that escapes a task or an Asio handler (BugError, bad_alloc) goes to `on_bug`; the loop then runs the next task.
// asio_context.h gives the io_context to .cc files that use Asio.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/loop.h"

namespace sirtaki::rendezvous {

class AsioLoop final : public Loop {
 public:
  // Starts the thread. `name` is the name of the thread (cut to 15 characters). `on_bug` runs on the loop thread.
  explicit AsioLoop(const std::string& name, MoveFunction<void(Status)> on_bug = {});
  ~AsioLoop() override;

  TimePoint now() const override;
  // Returns true on the loop thread; after stop(), on every thread, since the owner then destroys the state of the
  // loop.
  bool in_loop() const override;
  // Queues a task. After stop() the task is destroyed on the calling thread, and does not run.
  void post(Task task) override;
  // Sets a timer. A delay of zero or less fires in the next turn of the loop. Timers of equal deadlines fire in the
  // order in which they were set.
  TimerId after(Duration delay, Task task) override;
  void cancel(TimerId timer) override;

  // Runs `task` on the loop and waits for it; inline if called on the loop. Returns false if the loop stopped before
  // the task ran. Not for hot paths.
  bool run_sync(Task task);
  // Rejects new tasks, joins the thread, then destroys queued tasks on the calling thread. Any thread but the loop
  // thread; idempotent.
  void stop();
  // Returns how often the loop has slept since its start; for tests that it does not poll. Any thread.
  std::uint64_t wakeups() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace sirtaki::rendezvous
