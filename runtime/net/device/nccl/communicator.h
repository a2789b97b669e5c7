// Communicator: one NCCL communicator on this rank, as a state machine that never blocks for a peer.
//
// The communicator is non-blocking: each call is polled until it is no longer in progress, up to a deadline; a group is
// complete once its work is on the stream. Any error that may have touched the communicator aborts it for good. One
// group runs at a time, so the owner of several communicators can launch in one order.
// No method waits for the device: Teardown aborts and destroys the communicator on another thread, once nothing on the
// loop uses it any more. Not for progress on the device: the owner waits for events, and calls check() meanwhile.
// Owners: NcclCollectives, tests. Thread: loop, destructor included.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/base/types.h"
#include "runtime/net/device/nccl/nccl_api.h"
#include "runtime/net/device/nccl/teardown.h"

namespace sirtaki::net::nccl {

// Distributes the id of a communicator from rank 0 to the others, over a transport of the caller.
class IdExchange {
 public:
  virtual ~IdExchange() = default;
  // `own` is the id on rank 0, null elsewhere. Calls `done` exactly once, later, on the loop, with the id of rank 0 for
  // `key`.
  virtual void exchange(const std::string& key, const UniqueId* own, MoveFunction<void(Result<UniqueId>)> done) = 0;
};

struct CommunicatorOptions {
  std::string name = "job";  // for texts and keys; unique among the communicators of a rank
  Rank job_rank = 0;         // for texts
  Rank rank = 0;             // number among the ranks of the communicator
  int size = 1;
  int max_ctas = 0;  // limit of thread blocks for a collective; 0: NCCL chooses
  Duration connect_timeout = std::chrono::seconds(120);
  Duration slow_connect = std::chrono::seconds(5);  // a longer connection is logged
  // Limit of a launch and of close(). The first launches connect ranks and load kernels.
  Duration call_timeout = std::chrono::seconds(120);
  // Polls begin at first_poll; each pause doubles up to last_poll.
  Duration first_poll = std::chrono::microseconds(20);
  Duration last_poll = std::chrono::milliseconds(1);
};

class Communicator {
 public:
  enum class State : std::uint8_t { kClosed, kExchanging, kConnecting, kReady, kLaunching, kClosing, kAborted };
  // Calls one NCCL function and returns its result.
  using Call = MoveFunction<Outcome(const Api& api, CommHandle comm)>;

  // All references must outlive the communicator.
  Communicator(Loop& loop, const Api& api, IdExchange& ids, Teardown& teardown, Logger& log,
               CommunicatorOptions options);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  // Aborts a connected communicator; callbacks that are still due are dropped.
  ~Communicator();

  State state() const { return state_; }
  bool ready() const { return state_ == State::kReady; }
  const std::string& name() const { return options_.name; }

  // Connects all ranks. Requires kClosed; call it once.
  void connect(Done done);

  // Launches `group` as one NCCL group. Requires ready(). Done(ok): the work is on the streams. kInvalidArgument after
  // a group of one call: nothing is on a stream, and ready() still holds. Every other error aborts the communicator.
  void launch(std::vector<Call> group, Done done);

  // Returns an asynchronous error of NCCL; call it while work is on the device. The owner then aborts all
  // communicators of the device. Returns the cause in kAborted, ok in every other state.
  Status check() const;

  // Ends the step in progress with `cause`, and begins to end the work on the device. Idempotent; the first cause is
  // kept.
  void abort(Status cause);

  // Waits for the other ranks to close, too, then begins to release everything. Aborts if not ready.
  void close(Done done);

 private:
  void reply(Done done, Status status);
  void start_step(State state, std::string name, Duration timeout, Done done);
  void got_id(Result<UniqueId> id);
  void poll();
  void poll_again();
  void warn_if_slow();
  std::string step_name() const;
  std::string likely_cause() const;
  void stop_timer();
  void finish_step();
  void refuse(Outcome outcome, bool alone);
  void fail(Status cause);
  void drop();
  Outcome async_error() const;
  Status error(Outcome outcome, const std::string& step) const;

  Loop& loop_;
  const Api& api_;
  IdExchange& ids_;
  Teardown& teardown_;
  Logger& log_;
  const CommunicatorOptions options_;

  State state_ = State::kClosed;
  CommHandle comm_ = nullptr;
  std::shared_ptr<CommHandle> slot_;  // where NCCL writes comm_, on the loop and again on a thread of its own
  Status cause_;                      // cause of kAborted
  // The step in progress:
  std::string step_text_;
  Done done_;
  TimePoint begun_;
  TimePoint deadline_;
  TimePoint slow_at_;  // when to log a slow step; max(): logged, or never
  Duration pause_{};
  TimerId timer_;
  std::uint64_t step_ = 0;  // distinguishes a late answer from a current one
  std::shared_ptr<Communicator*> self_ = std::make_shared<Communicator*>(this);
};

}  // namespace sirtaki::net::nccl
