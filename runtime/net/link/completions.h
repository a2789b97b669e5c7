// Completions: callbacks that are due. The transport collects them while it works and runs them once its state is
// consistent. Used on one thread.
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
  // Runs the oldest callback, which may add others.
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
