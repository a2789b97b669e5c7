// DeviceStage: copies tensors of a GPU to host memory and back, for a data plane that handles host memory only.
//
// A fetch copies after the work that the program had queued on its stream. Work that order_before() orders after the
// returned tensors sees them. The host blocks for neither: a timer polls events while copies are pending. Each fetch
// and each return has an event of its own, however many are pending. Copies of each direction run in order on a stream
// of their own. No work of the stage waits on the device for another rank, so memory may be allocated on demand. An
// error of the device ends the stage: pending and later operations end with it.
// Owner: Session. Thread: loop, except mark(); destruction is allowed on any thread. Not for the choice of a GPU, nor
// for collectives on the GPU (net/device/device_collectives.h).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/device/mark_pool.h"
#include "runtime/device/pinned_pool.h"

namespace sirtaki::engine {

struct DeviceStageOptions {
  // Limit for the work of the program before a fetch.
  Duration deadline = std::chrono::minutes(30);
  // Polls begin at first_poll; each pause doubles up to last_poll.
  Duration first_poll = std::chrono::microseconds(20);
  Duration last_poll = std::chrono::microseconds(100);
};

struct DeviceStageDeps {
  Loop& loop;  // loop and stats must outlive the stage
  Stats& stats;
  Rank rank;  // rank and device are for texts
  std::string device;
  // Returns why the job is over; ok while it runs. Called while copies are pending.
  std::function<Status()> job_over;
  // Called at most once, later, when the device has failed, before pending operations end; the text names GPU and rank.
  std::function<void(const Status&)> lost;
};

class DeviceStage {
 public:
  // Creates streams and events on `device`, which the thread of the loop has entered.
  static Result<std::unique_ptr<DeviceStage>> create(std::unique_ptr<device::DeviceApi> device, DeviceStageDeps deps,
                                                     const DeviceStageOptions& options);
  DeviceStage(const DeviceStage&) = delete;
  DeviceStage& operator=(const DeviceStage&) = delete;
  ~DeviceStage();

  // Returns pinned memory; release it before the stage. An error means that the device failed.
  Result<device::PinnedBlock> take(std::size_t bytes);
  // Does the same, but leaves an error to the caller, who can do without the memory.
  Result<device::PinnedBlock> try_take(std::size_t bytes);
  // Marks the work queued on `program` so far, for fetch(). Callable on any thread.
  Result<device::Mark> mark(device::Stream program) { return marks_.record(program); }
  // Marks a stream of the runtime. Callable on the loop only.
  Result<device::Mark> mark_in_loop(device::Stream own) { return marks_.record_here(own); }
  // Copies `to.size()` bytes from `from` once `after` has completed, and calls `then` exactly once, later. Keep `to`
  // until then. A mark that was never recorded counts as complete; without bytes, `then` only reports completion of
  // `after`, for which no copy is waited. An error in `after` means that the device failed.
  void fetch(Bytes to, const std::byte* from, Result<device::Mark> after, Done then);
  // Copies the block to `to`. Requires that no fetch from `to` is pending.
  Status put_back(device::PinnedBlock block, std::byte* to);
  // Makes work queued on `program` from now on see the tensors returned so far.
  Status order_before(device::Stream program);

  bool fetching() const { return !fetching_.empty(); }
  // The device, for other users, which the stage must outlive.
  device::DeviceApi& device() { return *device_; }
  // Ends the stage, later, with an error of the device that another user has met. Returns the error that everything
  // ends with.
  Status fail(const Status& cause);
  // Ends pending and later operations with `cause`; the first cause is kept.
  void end(const Status& cause);
  // Leaks pinned memory from now on: the device may still copy from or to returned blocks.
  void keep_pinned() { cut_off_ = true; }
  // Returns true if the device has done all work of the stage and the work of the program that it had when the stage
  // was first found done, so that releasing memory waits for neither; false from an error of the device or
  // keep_pinned() on. Call it after end(), on a thread that has entered the device.
  bool drained();

 private:
  struct Fetch {
    device::Mark end;
    Done then;
    TimePoint deadline;
  };
  struct Return {
    device::Mark end;
    device::PinnedBlock block;
  };

  DeviceStage(std::unique_ptr<device::DeviceApi> device, DeviceStageDeps deps, const DeviceStageOptions& options);
  Status prepare();
  Result<device::Mark> start_fetch(Bytes to, const std::byte* from, Result<device::Mark> after);
  Result<device::Mark> start_return(const device::PinnedBlock& block, std::byte* to);
  void poll_later();
  void poll();
  Status poll_all();
  Status poll_returns();
  // Removes the flights whose mark has passed, and appends them to `arrived`.
  template <class Flights>
  Status take_arrived(Flights& flights, Flights& arrived) const;

  const std::unique_ptr<device::DeviceApi> device_;
  std::optional<device::Visit> last_visit_;  // enters the device while the members below are destroyed
  const DeviceStageDeps deps_;
  const DeviceStageOptions options_;
  Counter& fetched_bytes_;
  Counter& returned_bytes_;
  Gauge& pinned_bytes_;
  device::PinnedPool memory_;
  device::MarkPool marks_;
  device::Stream in_;
  device::Stream out_;
  Status ended_;
  bool report_lost_ = false;
  bool cut_off_ = false;  // the device may still do work whose end cannot be determined
  std::deque<Fetch> fetching_;
  std::deque<Return> returning_;          // from end() on, also fetches that have ended here, without a block
  std::optional<device::Mark> all_work_;  // behind the work of the program; set by drained()
  TimerId poll_timer_;                    // for poll()
  TimerId end_timer_;                     // for end(), after fail()
  Duration pause_;
};

}  // namespace sirtaki::engine
