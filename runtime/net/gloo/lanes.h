// Lanes: threads for calls that block, made on demand and used again.
// Owned by a backend that wraps a blocking library. run() from one thread; the destructor joins, so what runs must end.
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
  // At most `limit` threads, called `name`. A job never waits for another one.
  Lanes(std::string name, std::size_t limit);
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;
  ~Lanes();

  // kExhausted when every lane is busy and no more are allowed.
  Status run(Task job);
  std::size_t thread_count() const { return threads_.size(); }

 private:
  void work();

  const std::string name_;
  const std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable wake_;  // a job came, or the end
  std::vector<Task> jobs_;        // guarded by mutex_, like those below
  std::size_t idle_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;  // touched by the owner only
};

}  // namespace sirtaki::net
