// Communicator: one communicator of NCCL on this rank, as a state machine that never blocks for a peer.
//
// Made non-blocking: each call is followed until it is no longer in progress, up to a deadline of our own; that a group
// is over means that its work is on the stream. An error but a harmless one aborts the communicator, after which it can
// be connected anew, under another attempt. One group at a time, so that whoever owns several launches in one order.
// Owned by: NcclCollectives, tests. Thread: the loop's, destructor included; no other thread calls NCCL for it, which
// is what makes an abort safe. Only abort and the end of close() may take a moment. Not for: what the device does with
// what was launched; its owner waits for events, and asks check() meanwhile.
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

namespace sirtaki::net::nccl {

// How an id gets from the rank that makes it to the others; what carries it is the caller's.
class IdExchange {
 public:
  virtual ~IdExchange() = default;
  // `own` is rank 0's id, null on the others. `done` gets the id that rank 0 gave for `key`, once, later, on the loop.
  virtual void exchange(const std::string& key, const UniqueId* own, MoveFunction<void(Result<UniqueId>)> done) = 0;
};

struct CommunicatorOptions {
  std::string name = "bulk";  // for texts and keys; different among the communicators of a rank
  Rank rank = 0;
  int size = 1;
  int max_ctas = 0;  // how much of the device a collective may take; 0: NCCL chooses
  Duration connect_timeout = std::chrono::seconds(60);
  Duration slow_connect = std::chrono::seconds(5);  // the log tells of one that takes longer
  Duration call_timeout = std::chrono::seconds(30);
  // What is in progress is looked at again after the first time, then twice as late each time up to the last.
  Duration first_poll = std::chrono::microseconds(20);
  Duration last_poll = std::chrono::milliseconds(1);
};

class Communicator {
 public:
  enum class State : std::uint8_t { kClosed, kExchanging, kConnecting, kReady, kLaunching, kClosing, kAborted };
  // Calls one function of NCCL; says what it said.
  using Call = MoveFunction<Outcome(const Api& api, CommHandle comm)>;

  // All references outlive it.
  Communicator(Loop& loop, const Api& api, IdExchange& ids, Logger& log, CommunicatorOptions options);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  // Aborts what is connected; callbacks that are due by then are dropped.
  ~Communicator();

  State state() const { return state_; }
  bool ready() const { return state_ == State::kReady; }
  const std::string& name() const { return options_.name; }

  // From kClosed or kAborted. All ranks, with the same `attempt`, which none has used before.
  void connect(std::uint64_t attempt, Done done);

  // When ready: all of `group` as one. Done with ok: it is on the streams. kInvalidArgument: nothing is, and it is
  // still ready, if the group was of one call; everything else has aborted it.
  void launch(std::vector<Call> group, Done done);

  // While work is on the device: an error that NCCL has found meanwhile, after which it is aborted. Ok in every state
  // but kAborted, whose cause it says.
  Status check();

  // Ends what is in progress with `cause`, and work on the device. Again: nothing more. The first cause is kept until
  // the next connect().
  void abort(Status cause);

  // Waits for the other ranks to close as well, then lets go of everything. Aborts where it is not ready.
  void close(Done done);

 private:
  void reply(Done done, Status status);
  void start_step(State state, std::string what, Duration timeout, Done done);
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
  Outcome async_error();
  Status error(Outcome outcome, const std::string& what) const;

  Loop& loop_;
  const Api& api_;
  IdExchange& ids_;
  Logger& log_;
  const CommunicatorOptions options_;

  State state_ = State::kClosed;
  CommHandle comm_ = nullptr;
  Status cause_;  // of kAborted
  // Of the step in progress:
  std::string what_;
  Done done_;
  TimePoint begun_;
  TimePoint deadline_;
  TimePoint slow_at_;  // the log tells of it from then on; the largest of all: it has, or never will
  Duration pause_{};
  TimerId timer_;
  std::uint64_t step_ = 0;  // tells a late answer from one that is waited for
  std::shared_ptr<Communicator*> self_ = std::make_shared<Communicator*>(this);
};

}  // namespace sirtaki::net::nccl
