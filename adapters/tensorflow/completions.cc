#include "adapters/tensorflow/completions.h"

#include <utility>

namespace sirtaki_tensorflow {

Completions& Completions::instance() {
  // lint: allow(global) TensorFlow's kernels have no owner of ours, and the thread may outlive main()
  static auto* const kCompletions = new Completions;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
  return *kCompletions;
}

void Completions::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { run(); });
    }
    work_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void Completions::run() {
  while (true) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !work_.empty(); });
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

}  // namespace sirtaki_tensorflow
