// FakeDevice: a DeviceApi on host memory whose work completes when a test says so.
//
// Streams are queues of copies, kernels and events that run in order: at once, one by one while the device is held, or
// at their time on the clock of a test. Only this work can access memory that allocate() has returned as memory of the
// device (guarded_memory.h); memory of tests may stand for it. Thread-safe; work runs under one lock.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/types.h"
#include "runtime/device/device_api.h"
#include "tests/unit/device/guarded_memory.h"

namespace sirtaki::device::testing {

class FakeDevice final : public DeviceApi {
 public:
  FakeDevice();
  ~FakeDevice() override;

  // Makes later work wait for step() or run().
  void hold();
  // Runs all queued work, and later work at once.
  void run();
  // Makes each call of done() run the next piece of work of every stream; catch_up() and run() run all.
  void be_slow();
  // Runs all queued work; later work waits as before.
  void catch_up();
  // Runs the next piece of work of `stream`; false if there is none or it waits for an event.
  bool step(Stream stream);
  // Makes work end at its time on this clock: it begins when its stream has come to it. Copies take `copy`, kernels
  // what occupy() says, all else takes no time; allocate() and release() run the device idle. hold(), be_slow() and
  // step() must not be called.
  void keep_time(std::function<TimePoint()> now, Duration copy = Duration(0));
  // Queues a kernel that takes this time. Requires keep_time().
  static void occupy(
      Stream stream, Duration duration, std::function<void()> at_end = [] {});
  // Limits the memory of the device to `bytes`, of which a framework holds `held`. Without any left, streams cannot be
  // made either.
  void limit_memory(std::size_t bytes, std::size_t held);
  // Returns the number of calls of allocate() and release(), each of which waits for all work of the device.
  int memory_calls() const;
  // Returns those for memory of the device.
  int device_memory_calls() const;
  // Forbids calls that may synchronize with a device: creating and releasing.
  void seal() { sealed_ = true; }
  // Makes the next call that queues work return `status`.
  void refuse_next(Status status);
  // Makes done() return `status` from now on.
  void break_down(Status status);
  // Makes this a device that no kernel can run on.
  void refuse_kernels(Status why) { kernels_ready_ = std::move(why); }
  struct Seen {
    std::vector<std::string> breaches;  // calls on threads that have not entered the device
    int left = 0;                       // objects that were not destroyed before the device
    int stuck = 0;                      // releases of memory that would never return
  };
  // Starts to record misuse; the result survives the device.
  std::shared_ptr<const Seen> watch();
  // Number of streams, events and blocks of memory that are not destroyed yet.
  int alive() const { return alive_; }
  std::size_t queued() const;
  int visits() const { return visits_; }

  Status enter_thread() override;
  Result<Before> visit() override;
  void leave(const Before& before) override;
  const kernels::cuda::Kernels& kernels() const override;
  Status kernels_ready() const override { return kernels_ready_; }
  Result<Stream> make_stream(Priority priority) override;
  Result<Event> make_event() override;
  Result<std::byte*> allocate(Place place, std::size_t bytes) override;
  void destroy(Stream stream) override;
  void destroy(Event event) override;
  void release(Place place, std::byte* data) override;
  Status record(Event event, Stream stream) override;
  Status record_all(Event event) override;
  Status wait(Stream stream, Event event) override;
  Result<bool> done(Event event) override;
  Status copy(Stream stream, std::byte* to, const std::byte* from, std::size_t bytes) override;

  // Queues `work` of a fake kernel or library; it runs in its turn, and not before `can`, if set, returns true.
  static void queue(void* stream, std::function<void()> work, std::function<bool()> can = {});
  // Returns the device of a stream.
  static FakeDevice& of(void* stream);
  // Lets the device work as if time had passed: not at all while it is held, by one piece of each stream while it is
  // slow.
  void pass_time();

 private:
  struct Work {
    std::function<void()> run;
    std::function<bool()> can;
    Duration lasts = Duration(0);
  };
  struct Queue {
    FakeDevice* device;
    std::deque<Work> work;
    std::optional<TimePoint> front_ends = {};  // with keep_time(): the first piece of work has begun
    std::uint64_t ended = 0;                   // pieces of work
  };
  struct Mark {
    std::uint64_t recorded = 0;
    std::uint64_t reached = 0;
  };

  Status refused();
  // Counts a call that waits for the device.
  void synchronize(Place place);
  // Returns true if the device comes to a piece of work that it cannot end.
  bool hangs();
  void called(const char* what);
  void add(Queue& queue, Work work);
  // Runs the work that is due.
  void progress();
  void run_all();
  void run_until_now();
  // Returns the queue whose work ends first; null if none ends until `now`.
  Queue* next_until(TimePoint now);
  void step_all();
  // Runs the first work of `queue` if it can run, and returns whether it did. Sets `open` to open the memory.
  static bool step_locked(Queue& queue, std::optional<GuardedMemory::Open>& open);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Queue>> queues_;
  Queue* behind_all_ = nullptr;  // one of them, for record_all()
  std::vector<std::unique_ptr<Mark>> marks_;
  struct Memory {
    Place place;
    std::size_t bytes;
  };
  std::map<std::byte*, Memory> memory_;
  GuardedMemory guarded_;            // the memory of the device
  std::optional<std::size_t> free_;  // bytes of device memory; empty: no limit
  int memory_calls_ = 0;
  int device_memory_calls_ = 0;
  std::function<TimePoint()> now_;  // empty: work does not depend on time
  TimePoint time_;                  // up to which work has been run
  Duration copy_ = Duration(0);
  bool held_ = false;
  bool slow_ = false;
  bool sealed_ = false;
  int alive_ = 0;
  int visits_ = 0;
  Status kernels_ready_;
  Status refusal_;
  Status broken_;
  std::multiset<std::thread::id> entered_;
  std::shared_ptr<Seen> seen_;  // null: breaches are not recorded
};

}  // namespace sirtaki::device::testing
