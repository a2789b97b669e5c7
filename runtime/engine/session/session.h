// Session: one rank's runtime with its threads; the thread-safe face of the engine and what the C ABI wraps.
//
// Owned by: the C ABI's default session (one a process), or a test (many a process). Threads: any; the coordinator
// loop, the control thread and the transport live inside.
// Requests are ids in a table; waiting threads sleep on the request and are woken once.
// Tensors may be on one GPU, the first that one is seen on. A result is there for what the program gives its stream
// once the request, or the wait for a stream, is over: a wait for the host alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/config/config.h"
#include "runtime/base/task.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/base/tensor.h"
#include "runtime/base/types.h"
#include "runtime/device/device_api.h"
#include "runtime/engine/common/requests.h"
#include "runtime/engine/session/callers.h"
#include "runtime/engine/session/device_choice.h"
#include "runtime/engine/session/request_table.h"
#include "runtime/engine/session/stream_handle.h"
#include "runtime/engine/session/stream_table.h"
#include "runtime/net/device/nccl/loader.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki {
class Logger;
class Timeline;
class Track;
}  // namespace sirtaki

namespace sirtaki::engine {

class ControlPlane;
class DataPlane;
class DeviceStage;
class DeviceTransport;
class HostStagedOps;

// How this rank meets the others.
struct JobSpec {
  Rank rank = 0;
  int size = 1;
  std::string rendezvous;  // "host:port"; empty: size 1, or host_hub
  rendezvous::Secret secret;
  bool one_host = false;  // known beforehand: data ports listen on loopback only
  // Opens a GPU, on the thread that will use it. Empty: by the CUDA plug-in.
  std::function<Result<std::unique_ptr<device::DeviceApi>>(int index)> open_device = {};
  // Finds NCCL, on any thread.
  std::function<Result<net::nccl::Library>(const net::nccl::LoadOptions& options)> open_nccl = net::nccl::load;
};

class Session {
 public:
  // Meets the other ranks and starts the threads. `interrupted` (may be empty) is polled ten times a second while this
  // blocks; true ends it with kAborted.
  static Result<std::unique_ptr<Session>> open(std::shared_ptr<const Config> config, JobSpec job,
                                               MoveFunction<bool()> interrupted);
  ~Session();  // call close() first for an orderly end
  // Leaves in order: what is pending ends with kShutdown, the others are told. Idempotent.
  void close();

  const rendezvous::Membership& membership() const { return membership_; }
  Rank rank() const { return job_.rank; }
  const Config& config() const { return *config_; }

  // Checks what can be checked on this rank (sizes, splits, duplicate name in flight) and queues the operations, all or
  // none. The ids are in the order of `ops`.
  Result<std::vector<RequestId>> submit(std::vector<OpSpec> ops);
  bool done(RequestId request) const;  // unknown ids are done
  // nullopt: the time is over and the request goes on. A negative timeout waits without limit.
  std::optional<Status> wait(RequestId request, Duration timeout);
  // After a successful wait; stays valid until release(). nullptr when nothing was allocated.
  const OpResult* result(RequestId request) const;
  void release(RequestId request);  // waits first when in flight
  // Releases without a wait: the operation goes on, and `memory`, which holds its tensors, lives as long.
  void forget(RequestId request, std::shared_ptr<const void> memory) { requests_.forget(request, std::move(memory)); }
  // Runs `done` once: on the loop when the request is over, from close(), or at once when it is over already.
  // kInvalidArgument: the request is unknown, or has one.
  Status on_done(RequestId request, Task done) { return requests_.on_done(request, awaited(std::move(done))); }
  // Completed requests among those watched, for pump threads; empty after `timeout`; nullopt once closed.
  void watch(RequestId request) { requests_.watch(request); }
  std::optional<std::vector<RequestId>> wait_watched(std::size_t max, Duration timeout) {
    return requests_.wait_watched(max, timeout);
  }

  // Waits of the calling thread end as if their time were over when no rank can go on unless it does: what they waited
  // for goes on. For waits that are a promise, such as the one at the end of backward, and no need.
  void set_gives_way(bool on) { waiter_.set_gives_way(on); }

  // This rank has no more data: takes part in the steps of its streams with zeros until all ranks have called this.
  // Returns the rank that was the last; nullopt when time is over (it stays joined; call again). Nothing may be
  // submitted before.
  std::optional<Result<Rank>> join(Duration timeout);

  // See StreamTable::open().
  Result<StreamId> open_stream(StreamSpec spec, Duration timeout);
  // Returns the calls of an open stream; those of any other id return kInvalidArgument.
  StreamHandle stream(StreamId stream) { return {*streams_, stream}; }

  std::string stats_json() const;
  Status timeline_start(const std::string& path);
  Status timeline_stop();
  void timeline_mark(const std::string& name, std::int64_t begin_ns, std::int64_t end_ns);

 private:
  Session(std::shared_ptr<const Config> config, JobSpec job, std::function<bool()> interrupted);

  Status start();
  Status meet();
  void start_engine();
  void fail(const Status& cause);
  void note_waiting();
  // `done`, counted from now until it has been called.
  Task awaited(Task done);
  Callers callers();
  void on_data_lost(Rank rank, const Status& cause);
  void on_device_lost(const Status& cause);
  Status open_device(int index);
  Status stage_device(int index, const Result<net::nccl::Library>& nccl);
  void leave_device(const Status& cause);
  void await_returns();
  // `begin` on the loop, and what it gets called, for a moment at most.
  void await(const std::function<void(Task)>& begin);

  // Functions of on_done() that have not been called yet.
  struct FunctionsInWait {
    std::atomic<int> count{0};
    std::atomic<bool> timer_runs{false};
    Rest rest;  // used on the loop
  };
  // A call of join() that waits, or whose time was over.
  struct JoinCall {
    std::mutex mutex;
    std::shared_ptr<Slot> slot;  // guarded by mutex; null: no such call
    std::shared_ptr<Rank> last;  // the rank that joined last, set with the slot
  };

  const std::shared_ptr<const Config> config_;
  const JobSpec job_;
  const std::function<bool()> interrupted_;
  FunctionsInWait awaited_;
  Waiter waiter_;
  RequestTable requests_{job_.rank};
  Stats stats_;
  std::unique_ptr<Timeline> timeline_;
  Track* user_track_ = nullptr;
  std::mutex mark_mutex_;  // marks may come from several threads, a track takes one
  JoinCall join_;
  DeviceChoice device_;
  std::unique_ptr<Logger> log_;
  rendezvous::Membership membership_;
  std::atomic<bool> closed_{false};

  // Everything below lives on loop_, which therefore is destroyed after it.
  mutable rendezvous::AsioLoop loop_;
  std::unique_ptr<DeviceStage> stage_;  // lends memory to those below
  std::unique_ptr<DeviceTransport> plane_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<DataPlane> data_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<HostStagedOps> ops_;
  std::unique_ptr<StreamTable> streams_;
};

}  // namespace sirtaki::engine
