#include "runtime/net/device/nccl/teardown.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

namespace sirtaki::net::nccl {

// The state of a call, which its thread and the owner share.
struct ThreadTeardown::Call {
  enum class Stage : std::uint8_t { kStarted, kEntered, kReturned };

  void reach(Stage stage) {
    const std::lock_guard lock(mutex);
    reached = stage;
    changed.notify_all();
  }
  bool has_returned() {
    const std::lock_guard lock(mutex);
    return reached == Stage::kReturned;
  }

  std::mutex mutex;
  std::condition_variable changed;
  Stage reached = Stage::kStarted;
};

ThreadTeardown::~ThreadTeardown() {
  for (Running& running : running_) {
    std::unique_lock lock(running.call->mutex);
    const bool returned = running.call->changed.wait_until(
        lock, running.deadline, [&] { return running.call->reached == Call::Stage::kReturned; });
    lock.unlock();
    if (returned) {
      running.thread.join();
      continue;
    }
    log_.warn(
        "NCCL has not ended a communicator in " +
        std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count()) +
        " ms (device.nccl_end_timeout); its thread is left behind. Likely cause: the GPU hangs, or a kernel on it "
        "never ends. End this process, and look for errors of the driver");
    running.thread.detach();
  }
}

void ThreadTeardown::start(End end, CommHandle comm, std::shared_ptr<CommHandle> slot) {
  auto call = std::make_shared<Call>();
  Running running{{}, call, std::chrono::steady_clock::now() + timeout_};
  try {
    running.thread = std::thread([device = &device_, call, end, comm, slot = std::move(slot)] {
      pthread_setname_np(pthread_self(), "srt-nccl-end");
      // Without the device, NCCL still selects the one of the communicator.
      static_cast<void>(device->enter_thread());
      call->reach(Call::Stage::kEntered);
      end(comm);
      call->reach(Call::Stage::kReturned);
    });
  } catch (const std::system_error& error) {
    log_.warn("a communicator of NCCL is left behind, because no thread can be started to end it: " +
              std::string(error.what()));
    left_behind_ = true;
    return;
  }
  // Entering a device does not wait for its work; a driver that hangs may hold it nevertheless.
  std::unique_lock lock(call->mutex);
  call->changed.wait_until(lock, running.deadline, [&] { return call->reached != Call::Stage::kStarted; });
  lock.unlock();
  running_.push_back(std::move(running));
}

bool ThreadTeardown::done() {
  std::erase_if(running_, [](Running& running) {
    if (!running.call->has_returned()) {
      return false;
    }
    running.thread.join();
    return true;
  });
  return running_.empty() && !left_behind_;
}

}  // namespace sirtaki::net::nccl
