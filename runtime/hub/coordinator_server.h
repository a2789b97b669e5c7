// CoordinatorServer: the coordinator of a job, a rendezvous Server with the agreement state machine
// (control/coordinator.h) on one control thread.
//
// Owned by: the launcher, or the process of rank 0 if another launcher started the ranks. Steady-state training does
// not depend on its state, but ranks that lose their coordinator end with an error that says so.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/task.h"
#include "runtime/base/types.h"
#include "runtime/control/coordinator.h"
#include "runtime/rendezvous/server.h"

namespace sirtaki::hub {

// Events that the owner may report to the user. Called on the control thread; must not block.
struct CoordinatorServerEvents {
  MoveFunction<void(const rendezvous::Membership&)> on_epoch;
  MoveFunction<void(Rank, const Status&)> on_lost;
  MoveFunction<void(Rank)> on_left;                   // the rank has left in order
  MoveFunction<void(const std::string&)> on_warning;  // one line for the log, such as a stall report
};

struct CoordinatorServerOptions {
  rendezvous::ServerOptions server;
  Duration stall_warn = std::chrono::seconds(60);  // warn of an operation that waits so long for live ranks
  Duration stall_fail = std::chrono::minutes(30);  // then give the operation up
  Duration stuck_after = std::chrono::seconds(1);  // a deadlock that lasts so long is an error on all ranks
  control::CoordinatorOptions coordinator;
};

class CoordinatorServer {
 public:
  // Starts the control thread and listens. Any thread.
  static Result<std::unique_ptr<CoordinatorServer>> start(CoordinatorServerOptions options,
                                                          CoordinatorServerEvents events);
  // Closes the port and ends the thread.
  virtual ~CoordinatorServer() = default;

  virtual std::uint16_t port() const = 0;
  // Reports the end of the process of a rank, see rendezvous::Server::report_exit(). Any thread.
  virtual void report_exit(Rank rank, std::string what) = 0;
  // Waits at most `grace` until no member is connected; returns true if none is. Any thread.
  virtual bool drain(Duration grace) = 0;
};

}  // namespace sirtaki::hub
