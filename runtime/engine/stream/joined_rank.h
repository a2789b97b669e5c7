// JoinedRank: contributes zeros to the steps of a stream while this rank has no more data.
//
// It acts like a program that submits zeros from the loop, one step after the other, until the attempt in which all
// ranks have joined. Owned by GradientStream; loop thread. Not for: making the zeros (DensePath), or the agreement on
// the end (Coordinator).
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"

namespace sirtaki::engine {

class JoinedRank {
 public:
  struct Host {
    // Returns whether the stream has failed, or is open in `attempt` or a later one: the program goes on.
    std::function<bool(std::uint32_t attempt)> reached;
    // Submits one step of zeros and calls next() once it is over.
    std::function<void()> step;
    // Called when the rank does not contribute any more.
    std::function<void()> ended;
  };

  JoinedRank(Loop& loop, Host host) : loop_(loop), host_(std::move(host)) {}
  ~JoinedRank() { loop_.cancel(timer_); }
  JoinedRank(const JoinedRank&) = delete;
  JoinedRank& operator=(const JoinedRank&) = delete;

  bool joined() const { return joined_; }

  // Blocks the start of steps until allow_start(), because the path of gradients is not decided yet.
  void block_start() { blocked_ = true; }
  void allow_start();

  // Begins to contribute zeros.
  void begin();
  // Ends in `attempt`: calls `done` once, when the program may go on or the stream has failed.
  void end_in(std::uint32_t attempt, Task done);
  // Begins the next step, in a turn of the loop of its own.
  void next();
  // Takes the callback of end_in(), for a stream that has failed.
  Task take_done() { return std::exchange(done_, {}); }

 private:
  static constexpr std::uint32_t kNever = 0xffffffffU;

  void run();

  Loop& loop_;
  const Host host_;
  bool blocked_ = false;
  bool joined_ = false;
  std::uint32_t until_ = kNever;
  TimerId timer_;
  Task done_;
};

}  // namespace sirtaki::engine
