// FakeDevice: a device whose work is done when a test says so, on memory of the host.
//
// Streams are queues of copies, kernels and events that run in order, as soon as they can or, while it is held, when
// told. Threads: any; what runs, runs under one lock.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/device_api.h"

namespace sirtaki::device::testing {

class FakeDevice final : public DeviceApi {
 public:
  FakeDevice();
  ~FakeDevice() override;

  // From now on work waits for step() or run().
  void hold();
  // Does everything, and from now on at once.
  void run();
  // From now on the next piece of work of each stream is done when done() asks for an event, and all when told.
  void be_slow();
  // Does everything; what comes later waits as before.
  void catch_up();
  // Does the next piece of work of `stream` if it can be done.
  bool step(Stream stream);
  // What may wait for a device may be called no more.
  void seal() { sealed_ = true; }
  // The next call that queues something says this.
  void refuse_next(Status status);
  // What done() says from now on.
  void break_down(Status status);
  struct Seen {
    std::vector<std::string> breaches;  // calls of threads that may not
    int left = 0;                       // what was not given back when the device went
  };
  // From now on; is there when the device is gone.
  std::shared_ptr<const Seen> watch();
  // Streams, events and memory that are not given back.
  int alive() const { return alive_; }
  std::size_t queued() const;
  int visits() const { return visits_; }

  Status enter_thread() override;
  Result<Before> visit() override;
  void leave(const Before& before) override;
  const kernels::cuda::Kernels& kernels() const override;
  Result<Stream> make_stream(Priority priority) override;
  Result<Event> make_event() override;
  Result<std::byte*> allocate(Place place, std::size_t bytes) override;
  void destroy(Stream stream) override;
  void destroy(Event event) override;
  void release(Place place, std::byte* data) override;
  Status record(Event event, Stream stream) override;
  Status wait(Stream stream, Event event) override;
  Result<bool> done(Event event) override;
  Status copy(Stream stream, std::byte* to, const std::byte* from, std::size_t bytes) override;

  // For kernels and libraries that a test plays: `work` runs in its turn; where `can` is given, not before it says so.
  static void queue(void* stream, std::function<void()> work, std::function<bool()> can = {});

 private:
  struct Work {
    std::function<void()> run;
    std::function<bool()> can;
  };
  struct Queue {
    FakeDevice* device;
    std::deque<Work> work;
  };
  struct Mark {
    std::uint64_t recorded = 0;
    std::uint64_t reached = 0;
  };

  Status refused();
  void called(const char* what);
  void add(Queue& queue, Work work);
  void progress();
  static bool step_locked(Queue& queue);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::vector<std::unique_ptr<Mark>> marks_;
  std::set<std::byte*> memory_;
  bool held_ = false;
  bool slow_ = false;
  bool sealed_ = false;
  int alive_ = 0;
  int visits_ = 0;
  Status refusal_;
  Status broken_;
  std::multiset<std::thread::id> entered_;
  std::shared_ptr<Seen> seen_;  // null: nobody watches
};

}  // namespace sirtaki::device::testing
