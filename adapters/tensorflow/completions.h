// Completions: the thread on which kernels end, so that neither the runtime's loop nor TensorFlow's threads wait.
//
// One a process, started by the first use, joined when the process ends. Idle it sleeps.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace sirtaki_tensorflow {

class Completions {
 public:
  static Completions& instance();
  // Runs `work` on the thread. Any thread, does not block.
  void post(std::function<void()> work);

 private:
  Completions() = default;
  ~Completions();
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
  bool ending_ = false;                     // guarded by mutex_
  std::thread thread_;                      // started and joined with mutex_ free of it
};

}  // namespace sirtaki_tensorflow
