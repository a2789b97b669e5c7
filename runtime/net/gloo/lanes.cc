#include "runtime/net/gloo/lanes.h"

#include <pthread.h>

#include <utility>

namespace sirtaki::net {

Lanes::Lanes(std::string name, std::size_t limit) : name_(std::move(name)), limit_(limit) {}

Lanes::~Lanes() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

Status Lanes::run(Task job) {
  {
    const std::lock_guard lock(mutex_);
    if (jobs_.size() < idle_) {
      jobs_.push_back(std::move(job));
      wake_.notify_one();
      return {};
    }
    if (threads_.size() >= limit_) {
      return {Code::kExhausted, "all " + std::to_string(limit_) + " threads for blocking operations are busy"};
    }
    jobs_.push_back(std::move(job));
    ++idle_;
  }
  threads_.emplace_back([this] {
    pthread_setname_np(pthread_self(), name_.c_str());
    work();
  });
  return {};
}

// A thread counts as idle from its creation on, so that every job has a thread.
void Lanes::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    Task job = std::move(jobs_.back());
    jobs_.pop_back();
    --idle_;
    lock.unlock();
    job();
    job = Task();
    lock.lock();
    ++idle_;
  }
}

}  // namespace sirtaki::net
