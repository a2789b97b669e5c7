// Completions: callbacks that are due, collected while the transport works and run when it is in a consistent state.
// One thread.
#pragma once

#include <deque>
#include <utility>

#include "runtime/base/task.h"

namespace sirtaki::net {

class Completions {
 public:
  void add(Done done, Status status) {
    if (done) {
      due_.push_back({std::move(done), std::move(status)});
    }
  }
  bool empty() const { return due_.empty(); }
  // Runs the oldest; it may add others.
  void run_one() {
    Due due = std::move(due_.front());
    due_.pop_front();
    due.done(std::move(due.status));
  }

 private:
  struct Due {
    Done done;
    Status status;
  };
  std::deque<Due> due_;
};

}  // namespace sirtaki::net
