// Session: the runtime of one rank with its threads; the thread-safe interface of the engine, which the C ABI wraps.
//
// Owned by the C ABI (one session per process) or by a test (many per process). Threads: any; the session owns the
// coordinator loop, the control thread and the transport.
// Requests are ids in a table; a waiting thread sleeps on its request and is woken once.
// Tensors may be on one GPU, the one of the first GPU tensor. Work that the program queues on its CUDA stream after a
// wait has returned sees the result; the wait itself blocks the calling thread only.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
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

namespace sirtaki::net {
class LaunchServer;
}

namespace sirtaki::engine {

class ControlLine;
class ControlPlane;
class DataPlane;
class DeviceStage;
class DeviceTransport;
class HostStagedOps;

// The place of this rank in the job (in an elastic one, at its start), and the means to meet the other ranks.
struct JobSpec {
  Rank rank = 0;
  int size = 1;
  std::string rendezvous;  // "host:port"; empty: size 1, or host_hub
  rendezvous::Secret secret;
  std::shared_ptr<ControlLine> line = {};  // the connection of an elastic job, whose ranks change; null: not elastic
  bool one_host = false;                   // all ranks are known to be on this host: data ports listen on loopback only
  // Opens a GPU, on the thread that will use it. If empty, the CUDA plug-in is used.
  std::function<Result<std::unique_ptr<device::DeviceApi>>(int index)> open_device = {};
  // Finds NCCL, on any thread.
  std::function<Result<net::nccl::Library>(const net::nccl::LoadOptions& options)> open_nccl = net::nccl::load;
};

// Connects to the coordinator of an elastic job, for JobSpec::line.
Result<std::shared_ptr<ControlLine>> connect_line(const Config& config, const JobSpec& job,
                                                  const std::function<bool()>& interrupted);

// Changes of the ranks of an elastic job, for programs; see ControlLine.
struct Growth {
  bool grows = false;           // ranks may join after the start
  bool fresh = false;           // this process has joined and has no state yet
  std::uint32_t wanted = 0;     // a change that waits; 0: none
  std::uint32_t announced = 0;  // processes on their way into the job or out of it
};
Growth growth(const ControlLine& line);
void admit(ControlLine& line, bool admits);
void agree(ControlLine& line, std::uint32_t change);
void cut(ControlLine& line);

// Returns the streams of the session before whose step in progress counts, because all ranks hold its results; once.
std::set<StreamId> committed_streams(ControlLine& line);

class Session {
 public:
  // Meets the other ranks and starts the threads. Polls `interrupted` (may be empty) ten times a second and returns
  // kAborted once it is true. kRanksChanged: a rank of an elastic job was lost meanwhile; try again with the same line.
  static Result<std::unique_ptr<Session>> open(std::shared_ptr<const Config> config, JobSpec job,
                                               MoveFunction<bool()> interrupted);
  ~Session();  // call close() first for an orderly end
  // Leaves the job in order: pending operations end with kShutdown, and the other ranks are notified. Idempotent.
  void close();
  // Ends the session of an elastic job so that another one can be opened with the same line: pending operations end
  // with its first error, the other ranks and the coordinator are not notified. Nothing may be called afterwards but
  // close().
  void drop();
  // Asks the coordinator of an elastic job to end the epoch soon, at a change, because this rank has to leave the job.
  // kUnsupported: the job is not elastic.
  Status leave_soon();
  // Waits until the session has failed, for `timeout` at most, and returns its first error; ok if it has not failed.
  Status await_failure(Duration timeout);

  const rendezvous::Membership& membership() const { return membership_; }
  Rank rank() const { return job_.rank; }
  const Config& config() const { return *config_; }

  // Checks the operations as far as this rank can (sizes, splits, names in flight) and queues all of them or none.
  // Returns ids in the order of `ops`.
  Result<std::vector<RequestId>> submit(std::vector<OpSpec> ops);
  bool done(RequestId request) const;  // true for unknown ids
  // Waits for a request. Returns nullopt if `timeout` has passed; the request goes on. A negative timeout has no limit.
  std::optional<Status> wait(RequestId request, Duration timeout);
  // Returns the result that the runtime allocated, or null if it allocated none. Requires a successful wait; the result
  // stays valid until release().
  const OpResult* result(RequestId request) const;
  void release(RequestId request);  // waits until the operation has completed
  // Releases a request without waiting: the operation goes on and keeps `memory`, which holds its tensors, alive.
  void forget(RequestId request, std::shared_ptr<const void> memory) { requests_.forget(request, std::move(memory)); }
  // Runs `done` exactly once: on the loop when the request completes, in close(), or immediately if it has completed.
  // Returns kInvalidArgument if the request is unknown or has a function already.
  Status on_done(RequestId request, Task done) { return requests_.on_done(request, awaited(std::move(done))); }
  // Adds the request to those that wait_watched() reports.
  void watch(RequestId request) { requests_.watch(request); }
  // Returns completed requests among those watched, for pump threads; empty after `timeout`; nullopt once closed.
  std::optional<std::vector<RequestId>> wait_watched(std::size_t max, Duration timeout) {
    return requests_.wait_watched(max, timeout);
  }

  // Sets whether waits of the calling thread give way: if no rank can go on otherwise, such a wait ends like one whose
  // timeout has passed, and the operation goes on. Meant for waits that the program can do without, such as the one at
  // the end of backward.
  void set_gives_way(bool on) { waiter_.set_gives_way(on); }

  // Declares that this rank has no more data: it contributes zeros to the steps of its streams until all ranks have
  // called this. Returns the rank that joined last, or nullopt if `timeout` has passed (the rank stays joined; call
  // again). Submit no operation until this has returned a rank.
  std::optional<Result<Rank>> join(Duration timeout);

  // See StreamTable::open().
  Result<StreamId> open_stream(StreamSpec spec, Duration timeout);
  // Returns the calls of an open stream; those of any other id return kInvalidArgument.
  StreamHandle stream(StreamId stream) { return {*streams_, stream}; }

  // Returns the latency of one exchange with the farthest rank if that is on a distant host; 0 if it is near, or as
  // long as nothing is known. Waits for the loop.
  Duration distant_latency() const;
  std::string stats_json() const;
  Status timeline_start(const std::string& path);
  Status timeline_stop();
  void timeline_mark(const std::string& name, std::int64_t begin_ns, std::int64_t end_ns);

 private:
  Session(std::shared_ptr<const Config> config, JobSpec job, std::function<bool()> interrupted);

  Status start();
  Status meet();
  Status take_seat();
  void end_threads();
  void start_engine();
  void fail(const Status& cause);
  void note_waiting();
  // Returns a task that runs `done`; awaited_ counts it from now until it has run.
  Task awaited(Task done);
  Callers callers();
  void on_data_lost(Rank rank, const Status& cause);
  void fail_unless_told(const Status& cause);
  void on_device_lost(const Status& cause);
  void on_nccl_failed(const Status& why);
  void order_launches();
  Status open_device(int index);
  Status stage_device(int index, const Result<net::nccl::Library>& nccl);
  void leave_device(const Status& cause);

  // Functions of on_done() that have not been called yet.
  struct FunctionsInWait {
    std::atomic<int> count{0};
    std::atomic<bool> timer_runs{false};
    Rest rest;  // used on the loop
  };
  // A call of join() that is waiting, or whose timeout has passed.
  struct JoinCall {
    std::mutex mutex;
    std::shared_ptr<Slot> slot;  // guarded by mutex; null: no such call
    std::shared_ptr<Rank> last;  // the rank that joined last, set with the slot
  };

  const std::shared_ptr<const Config> config_;
  JobSpec job_;  // rank and size of an elastic job are those of the epoch
  const std::function<bool()> interrupted_;
  FunctionsInWait awaited_;
  Waiter waiter_;
  RequestTable requests_{job_.rank};
  Stats stats_;
  std::unique_ptr<Timeline> timeline_;
  Track* user_track_ = nullptr;
  std::mutex mark_mutex_;  // serialises marks of several threads, since a track has one writer
  JoinCall join_;
  Slot failed_;  // ends with the first error of the session
  DeviceChoice device_;
  std::unique_ptr<Logger> log_;
  rendezvous::Membership membership_;
  std::atomic<bool> closed_{false};

  // The members below run on loop_, which is therefore destroyed after them.
  mutable rendezvous::AsioLoop loop_;
  std::unique_ptr<DeviceStage> stage_;           // owns staging memory of the members below
  std::unique_ptr<net::LaunchServer> launches_;  // on rank 0, if NCCL is possible
  std::unique_ptr<DeviceTransport> plane_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<DataPlane> data_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<HostStagedOps> ops_;
  std::unique_ptr<StreamTable> streams_;
};

}  // namespace sirtaki::engine
