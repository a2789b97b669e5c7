// Lanes: a pool of threads for blocking calls, which grows on demand.
// Owned by a backend that wraps a blocking library. Call run() from one thread. The destructor joins, so jobs must end.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/task.h"

namespace sirtaki::net {

class Lanes {
 public:
  // Creates at most `limit` threads named `name`. A job never waits for another one.
  Lanes(std::string name, std::size_t limit);
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;
  ~Lanes();

  // Returns kExhausted if every lane is busy and no more are allowed.
  Status run(Task job);
  std::size_t thread_count() const { return threads_.size(); }

 private:
  void work();

  const std::string name_;
  const std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable wake_;  // signalled for a job and for the end
  std::vector<Task> jobs_;        // guarded by mutex_, like those below
  std::size_t idle_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;  // touched by the owner only
};

}  // namespace sirtaki::net
