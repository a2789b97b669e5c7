// Session: one rank's runtime with its threads; the thread-safe face of the engine and what the C ABI wraps.
//
// Owned by: the C ABI's default session (one a process), or a test (many a process). Threads: any; the coordinator
// loop, the control thread and the transport live inside.
// Requests are ids in a table; waiting threads sleep on the request and are woken once.
// Tensors may be on one GPU, the first that one is seen on. A result is there for what the program gives its stream
// once the request, or the wait for a stream, is over: a wait for the host alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/config/config.h"
#include "runtime/base/task.h"
#include "runtime/base/tensor.h"
#include "runtime/base/types.h"
#include "runtime/device/device_api.h"
#include "runtime/engine/common/requests.h"
#include "runtime/engine/session/stream_handle.h"
#include "runtime/net/device/nccl/loader.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::engine {

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
  virtual ~Session() = default;  // close() first for an orderly end
  // Leaves in order: what is pending ends with kShutdown, the others are told. Idempotent.
  virtual void close() = 0;

  virtual const rendezvous::Membership& membership() const = 0;
  virtual Rank rank() const = 0;
  virtual const Config& config() const = 0;

  // Checks what can be checked on this rank (sizes, splits, duplicate name in flight) and queues the operations, all or
  // none. The ids are in the order of `ops`.
  virtual Result<std::vector<RequestId>> submit(std::vector<OpSpec> ops) = 0;
  virtual bool done(RequestId request) const = 0;  // unknown ids are done
  // nullopt: the time is over and the request goes on. A negative timeout waits without limit.
  virtual std::optional<Status> wait(RequestId request, Duration timeout) = 0;
  // After a successful wait; stays valid until release(). nullptr when nothing was allocated.
  virtual const OpResult* result(RequestId request) const = 0;
  virtual void release(RequestId request) = 0;  // waits first when in flight
  // Releases without a wait: the operation goes on, and `memory`, which holds its tensors, lives as long.
  virtual void forget(RequestId request, std::shared_ptr<const void> memory) = 0;
  // Runs `done` once: on the loop when the request is over, from close(), or at once when it is over already.
  // kInvalidArgument: the request is unknown, or has one.
  virtual Status on_done(RequestId request, Task done) = 0;
  // Completed requests among those watched, for pump threads; empty after `timeout`; nullopt once closed.
  virtual void watch(RequestId request) = 0;
  virtual std::optional<std::vector<RequestId>> wait_watched(std::size_t max, Duration timeout) = 0;

  // Waits of the calling thread end as if their time were over when no rank can go on unless it does: what they waited
  // for goes on. For waits that are a promise, such as the one at the end of backward, and no need.
  virtual void set_gives_way(bool on) = 0;

  // This rank has no more data: takes part in the steps of its streams with zeros until all ranks have called this.
  // Returns the rank that was the last; nullopt when time is over (it stays joined; call again). Nothing may be
  // submitted before.
  virtual std::optional<Result<Rank>> join(Duration timeout) = 0;

  // See StreamTable::open().
  virtual Result<StreamId> open_stream(StreamSpec spec, Duration timeout) = 0;
  // Returns the calls of an open stream; those of any other id return kInvalidArgument.
  virtual StreamHandle stream(StreamId stream) = 0;

  virtual std::string stats_json() const = 0;
  virtual Status timeline_start(const std::string& path) = 0;
  virtual Status timeline_stop() = 0;
  virtual void timeline_mark(std::string name, std::int64_t begin_ns, std::int64_t end_ns) = 0;
};

}  // namespace sirtaki::engine
