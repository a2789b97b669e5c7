// AsioLoop: the Loop of real threads, a named thread around one Boost.Asio io_context. Sleeps in epoll when idle.
//
// Owned by: Session (its coordinator loop) and Hub / Client (their control thread). The destructor stops and joins.
// An exception that escapes a task (BugError, bad_alloc) ends in `on_bug`, once; the loop then goes on.
// asio_context.h gives Asio users in .cc files the io_context.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/loop.h"

namespace sirtaki::rendezvous {

class AsioLoop final : public Loop {
 public:
  // `name` is the thread's name (at most 15 characters). Starts the thread.
  explicit AsioLoop(const std::string& name, MoveFunction<void(Status)> on_bug = {});
  ~AsioLoop() override;

  TimePoint now() const override;
  bool in_loop() const override;
  void post(Task task) override;
  TimerId after(Duration delay, Task task) override;
  void cancel(TimerId timer) override;

  // Runs `task` on the loop and waits for it; inline when already on the loop. Not for hot paths.
  void run_sync(Task task);
  // Stops accepting, drops what is queued and joins. Any thread but the loop's; idempotent.
  void stop();
  // Times the loop woke from sleep since it started; tests of "no polling" read it.
  std::uint64_t wakeups() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace sirtaki::rendezvous
