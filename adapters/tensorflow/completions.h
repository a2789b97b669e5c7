// Completions: the thread on which kernels end, so that neither the runtime's loop nor TensorFlow's threads wait.
//
// One object per process, created at its first use and never destroyed, because the runtime may report an end while
// static objects are being destroyed, and because a forked child has the object but not its thread. The idle thread
// sleeps.
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
  // Runs `work` on the thread. Any thread; does not block.
  void post(std::function<void()> work);

 private:
  Completions() = default;
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
  std::thread thread_;                      // guarded by mutex_
};

}  // namespace sirtaki_tensorflow
