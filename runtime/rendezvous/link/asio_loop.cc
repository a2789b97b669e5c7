#include "runtime/rendezvous/link/asio_loop.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/rendezvous/link/asio_context.h"

namespace sirtaki::rendezvous {

namespace asio = boost::asio;

namespace {

// Blocks the signals sent to the process during its lifetime, so that a thread started meanwhile inherits the mask.
// Fault signals stay unblocked: a blocked SIGSEGV would kill the process without its handler.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) {
      sigdelset(&all, fault);
    }
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Lets a thread wait until a task has run, or has been destroyed without running.
struct SyncPoint {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  bool ran = false;

  void end(bool did_run) {
    const std::lock_guard lock(mutex);
    ended = true;
    ran = did_run;
    changed.notify_all();
  }
};

struct SyncTask {
  SyncTask(SyncPoint* at, Task fn) : point(at), task(std::move(fn)) {}
  SyncTask(SyncTask&& other) noexcept
      : point(std::exchange(other.point, nullptr)), task(std::move(other.task)), started(other.started) {}
  SyncTask& operator=(SyncTask&&) = delete;
  // The captures of the task are destroyed first: they may point into the frame of the waiting thread.
  ~SyncTask() {
    task = Task();
    if (point != nullptr) {
      point->end(started);
    }
  }
  void operator()() {
    started = true;
    task();
  }

  SyncPoint* point;
  Task task;
  bool started = false;
};

}  // namespace

struct AsioLoop::Impl {
  using TimerKey = std::pair<TimePoint, std::uint64_t>;

  explicit Impl(MoveFunction<void(Status)> bug_handler) : on_bug(std::move(bug_handler)) {}

  void post(Task task);
  void run();
  void run_batch();
  void guarded(Task& task);
  void report_bug(const char* what);
  void arm_timer();
  void fire_timers();
  void drop_all();

  asio::io_context io{1};
  asio::steady_timer timer{io};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  MoveFunction<void(Status)> on_bug;
  bool bug_reported = false;

  std::mutex mutex;         // guards inbox, scheduled, closed
  std::vector<Task> inbox;  // posted tasks that the loop has not taken yet
  bool scheduled = false;   // run_batch is queued in the io_context
  bool closed = false;
  std::vector<Task> batch;  // reused by run_batch

  // One steady_timer serves all timers. Only an earlier deadline re-arms it, so that setting and cancelling a deadline
  // for every operation costs two map operations and no system call.
  std::map<TimerKey, Task> timers;
  std::unordered_map<std::uint64_t, TimePoint> deadlines;
  std::uint64_t last_timer = 0;
  TimePoint armed_for = TimePoint::max();

  std::atomic<std::uint64_t> sleeps{0};
  std::atomic<bool> stopping{false};
  std::atomic<bool> joined{false};  // the thread has ended
  std::atomic<std::thread::id> owner;
  std::mutex stop_mutex;
  std::thread thread;
};

asio::io_context& io_context_of(AsioLoop& loop) {
  return loop.impl().io;
}

void AsioLoop::Impl::post(Task task) {
  {
    const std::lock_guard lock(mutex);
    if (closed) {
      return;  // the caller destroys `task` outside the lock
    }
    inbox.push_back(std::move(task));
    if (scheduled) {
      return;
    }
    scheduled = true;
  }
  asio::post(io, [this] { run_batch(); });
}

void AsioLoop::Impl::report_bug(const char* what) {
  if (std::exchange(bug_reported, true) || !on_bug) {
    return;
  }
  try {
    on_bug(bug(what));
  } catch (...) {  // no handler is left for a failure of on_bug
  }
}

void AsioLoop::Impl::guarded(Task& task) {
  try {
    task();
  } catch (const std::exception& error) {
    report_bug(error.what());
  } catch (...) {
    report_bug("a task threw something that is not a std::exception");
  }
}

void AsioLoop::Impl::run_batch() {
  {
    const std::lock_guard lock(mutex);
    batch.swap(inbox);
    scheduled = false;
  }
  for (Task& task : batch) {
    if (stopping.load(std::memory_order_relaxed)) {
      return;  // stop() destroys the remaining tasks
    }
    Task current = std::move(task);
    guarded(current);
  }
  batch.clear();
}

void AsioLoop::Impl::arm_timer() {
  if (timers.empty() || timers.begin()->first.first >= armed_for) {
    return;
  }
  armed_for = timers.begin()->first.first;
  timer.expires_at(std::chrono::time_point_cast<std::chrono::steady_clock::duration>(armed_for));
  timer.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      fire_timers();
    }
  });
}

void AsioLoop::Impl::fire_timers() {
  armed_for = TimePoint::max();
  const TimePoint now = std::chrono::steady_clock::now();
  const std::uint64_t newest = last_timer;
  while (!timers.empty() && !stopping.load(std::memory_order_relaxed)) {
    const auto first = timers.begin();
    // A timer set by one of these tasks waits for the next turn, so that a chain of zero delays cannot starve the
    // sockets.
    if (first->first.first > now || first->first.second > newest) {
      break;
    }
    Task task = std::move(first->second);
    deadlines.erase(first->first.second);
    timers.erase(first);
    guarded(task);
  }
  arm_timer();
}

void AsioLoop::Impl::run() {
  while (!stopping.load(std::memory_order_relaxed)) {
    try {
      if (io.poll() == 0 && !io.stopped()) {
        sleeps.fetch_add(1, std::memory_order_relaxed);
        io.run_one();
      }
    } catch (const std::exception& error) {
      report_bug(error.what());
    } catch (...) {
      report_bug("a handler threw something that is not a std::exception");
    }
  }
}

void AsioLoop::Impl::drop_all() {
  std::vector<Task> dropped;
  {
    const std::lock_guard lock(mutex);
    dropped.swap(inbox);
  }
  batch.clear();
  dropped.clear();
  auto old_timers = std::move(timers);
  timers.clear();
  deadlines.clear();
}

AsioLoop::AsioLoop(const std::string& name, MoveFunction<void(Status)> on_bug)
    : impl_(std::make_unique<Impl>(std::move(on_bug))) {
  const SignalsBlocked blocked;
  impl_->thread = std::thread([impl = impl_.get(), name = name.substr(0, 15)] {
    impl->owner = std::this_thread::get_id();
    pthread_setname_np(pthread_self(), name.c_str());
    impl->run();
  });
}

AsioLoop::~AsioLoop() {
  stop();
}

TimePoint AsioLoop::now() const {
  return std::chrono::steady_clock::now();
}

bool AsioLoop::in_loop() const {
  return impl_->owner.load(std::memory_order_relaxed) == std::this_thread::get_id() ||
         impl_->joined.load(std::memory_order_acquire);
}

void AsioLoop::post(Task task) {
  impl_->post(std::move(task));
}

TimerId AsioLoop::after(Duration delay, Task task) {
  SRT_IN_LOOP(*this);
  const TimePoint start = now();
  // A delay such as Duration::max() means never, so the sum must not overflow.
  const TimePoint deadline = delay > TimePoint::max() - start ? TimePoint::max() : start + delay;
  const std::uint64_t id = ++impl_->last_timer;
  impl_->timers.emplace(std::pair(deadline, id), std::move(task));
  impl_->deadlines.emplace(id, deadline);
  impl_->arm_timer();
  return TimerId(id);
}

void AsioLoop::cancel(TimerId timer) {
  SRT_IN_LOOP(*this);
  const auto found = impl_->deadlines.find(timer.value);
  if (found == impl_->deadlines.end()) {
    return;
  }
  // Leaves the map before its destruction, because its captures may call back into this loop.
  const auto node = impl_->timers.extract(std::pair(found->second, timer.value));
  impl_->deadlines.erase(found);
}

bool AsioLoop::run_sync(Task task) {
  if (impl_->joined.load(std::memory_order_acquire)) {
    return false;
  }
  if (in_loop()) {
    task();
    return true;
  }
  SyncPoint point;
  post(SyncTask(&point, std::move(task)));
  std::unique_lock lock(point.mutex);
  point.changed.wait(lock, [&] { return point.ended; });
  return point.ran;
}

void AsioLoop::stop() {
  const std::lock_guard stop_lock(impl_->stop_mutex);
  if (!impl_->thread.joinable()) {
    return;
  }
  SRT_CHECK(impl_->owner.load() != std::this_thread::get_id());
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->closed = true;
  }
  impl_->stopping = true;
  impl_->io.stop();
  impl_->thread.join();
  impl_->owner = std::thread::id();
  impl_->joined = true;
  impl_->drop_all();
}

std::uint64_t AsioLoop::wakeups() const {
  return impl_->sleeps.load(std::memory_order_relaxed);
}

}  // namespace sirtaki::rendezvous
