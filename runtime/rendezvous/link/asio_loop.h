// AsioLoop: the Loop of real threads, a named thread around one Boost.Asio io_context. Sleeps in epoll when idle.
//
// Owned by: Session (its coordinator loop) and CoordinatorServer / Client (their control thread). The destructor stops
// and joins. Signals stay with the process's other threads: this one blocks them, so that Ctrl-C reaches the main
// thread. An exception that escapes a task or an Asio handler (BugError, bad_alloc) ends in `on_bug`, the first one
// only; the loop then goes on with the next task. asio_context.h gives Asio users in .cc files the io_context.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/loop.h"

namespace sirtaki::rendezvous {

class AsioLoop final : public Loop {
 public:
  // `name` is the thread's name (cut to 15 characters). Starts the thread. `on_bug` runs on the loop's thread.
  explicit AsioLoop(const std::string& name, MoveFunction<void(Status)> on_bug = {});
  ~AsioLoop() override;

  TimePoint now() const override;
  // After stop() there is no such thread, and what belonged to the loop is its owner's to destroy: true everywhere.
  bool in_loop() const override;
  // After stop() the task is destroyed unrun, on the calling thread.
  void post(Task task) override;
  // A delay of zero or less fires in the next turn of the loop. Timers of one deadline fire in the order they were set.
  TimerId after(Duration delay, Task task) override;
  void cancel(TimerId timer) override;

  // Runs `task` on the loop and waits for it; inline when already on the loop. Not for hot paths. False when the loop
  // is stopped, or was before the task ran.
  bool run_sync(Task task);
  // Stops accepting, joins, then destroys what was queued on the calling thread. Any thread but the loop's; idempotent.
  void stop();
  // Times the loop has slept since it started; tests of "no polling" read it. Any thread.
  std::uint64_t wakeups() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace sirtaki::rendezvous
