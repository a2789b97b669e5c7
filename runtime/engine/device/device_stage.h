// DeviceStage: brings tensors of a GPU into memory of the host and back, for a data plane that knows the host's alone.
//
// A tensor is fetched behind what the program has queued on its stream when it hands it over; what is put back is there
// for all that the program queues on its stream from then on. The host waits for neither: a timer asks for events while
// there is something to ask for. Copies of one direction are done in order, on a stream each. No work of it waits on
// the device for another rank, so that memory may be made when it is needed. An error of the device ends it: what is in
// flight, and all that comes later, ends with that error. Loop thread, but for mark(); the destructor may come on any.
// Owned by Session. Not for: which of a rank's GPUs; collectives on the GPU (net/device_collectives.h).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/device/event_pool.h"
#include "runtime/device/mark_pool.h"
#include "runtime/device/pinned_pool.h"

namespace sirtaki::engine {

struct DeviceStageOptions {
  // The longest that a fetch may wait for what the program has queued before it.
  Duration deadline = std::chrono::minutes(30);
  // Events are asked for after the first time, then twice as late each time up to the last.
  Duration first_poll = std::chrono::microseconds(20);
  Duration last_poll = std::chrono::milliseconds(1);
};

struct DeviceStageDeps {
  Loop& loop;  // this and stats outlive it
  Stats& stats;
  Rank rank;  // both for texts
  std::string device;
  // Why the job is over; ok while it is not. Asked for while something is in flight.
  std::function<Status()> job_over;
  // The device has failed; the text says which, of which rank. Once, later, and before what is in flight ends with it.
  std::function<void(const Status&)> lost;
};

class DeviceStage {
 public:
  // Makes streams and events on `device`, which the loop's thread has entered.
  static Result<std::unique_ptr<DeviceStage>> create(std::unique_ptr<device::DeviceApi> device, DeviceStageDeps deps,
                                                     const DeviceStageOptions& options);
  DeviceStage(const DeviceStage&) = delete;
  DeviceStage& operator=(const DeviceStage&) = delete;
  ~DeviceStage();

  // Memory of the host; it goes back before the stage does. An error is one of the device.
  Result<device::PinnedBlock> take(std::size_t bytes);
  // The same for who can do without: an error is nobody's but the caller's.
  Result<device::PinnedBlock> try_take(std::size_t bytes);
  // On any thread: what `program` has been given so far, for fetch().
  Result<device::Mark> mark(device::Stream program) { return marks_.record(program); }
  // On the loop, of a stream of the runtime's.
  Result<device::Mark> mark_in_loop(device::Stream own) { return marks_.record_here(own); }
  // `then` once, later. Ok: `to` holds what was at `from` when `after` had come. An error there is one of the device.
  // The caller keeps `to`, and gives it back when `then` has come. Of no bytes: says when `after` has come. A mark that
  // was never recorded has come.
  void fetch(Bytes to, const std::byte* from, Result<device::Mark> after, Done then);
  // What `before` is given from now on sees the block's bytes at `to`. The fetch of what is there has ended.
  Status put_back(device::PinnedBlock block, std::byte* to, device::Stream before);

  bool fetching() const { return !fetching_.empty(); }
  // For others who work on the device; outlives them.
  device::DeviceApi& device() { return *device_; }
  // An error of the device that others have met: as one of the stage's own. What everything ends with, later.
  Status fail(const Status& cause);
  // What is in flight, and comes later, ends with `cause`; the first one is kept.
  void end(const Status& cause);
  // Others may still have copies on the device, from or to blocks that have come back: none is released any more.
  void keep_pinned() { cut_off_ = true; }
  // After end(): runs `then`, once, when all that was put back has arrived, or nobody can know. Before that the memory
  // it comes from cannot be released.
  void when_returned(Task then);

 private:
  struct Fetch {
    Done then;
    TimePoint deadline;
    device::PooledEvent end;  // of it and those before; may be none
  };
  struct Return {
    device::PinnedBlock block;
    device::PooledEvent end;
  };

  DeviceStage(std::unique_ptr<device::DeviceApi> device, DeviceStageDeps deps, const DeviceStageOptions& options);
  Status prepare();
  Status start_fetch(Bytes to, const std::byte* from, const Result<device::Mark>& after);
  Status start_return(const device::PinnedBlock& block, std::byte* to, device::Stream before);
  void poll_later();
  void check_finite();
  Status poll_all();
  template <class Flights, class Over>
  Status poll_copies(Flights& flights, device::Stream stream, Over over);
  template <class Flight>
  Status mark_end(Flight& flight, device::Stream stream);

  const std::unique_ptr<device::DeviceApi> device_;
  std::optional<device::Visit> last_visit_;  // while what follows is destroyed
  const DeviceStageDeps deps_;
  const DeviceStageOptions options_;
  Counter& fetched_bytes_;
  Counter& returned_bytes_;
  Gauge& pinned_bytes_;
  device::PinnedPool memory_;
  device::MarkPool marks_;
  std::unique_ptr<device::EventPool> events_;
  // What streams are told to wait for. They wait for it as recorded when they were told, so one will do.
  device::Event after_return_;
  device::Stream in_;
  device::Stream out_;
  Status ended_;
  bool report_lost_ = false;
  bool cut_off_ = false;  // what has ended here the device may still work on
  std::deque<Fetch> fetching_;
  std::deque<Return> returning_;
  TimerId poll_timer_;    // of check_finite()
  TimerId end_timer_;     // of end(), after fail()
  TimerId return_timer_;  // of when_returned()
  Duration pause_;
};

}  // namespace sirtaki::engine
