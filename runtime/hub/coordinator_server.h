// CoordinatorServer: the coordinator of a job, a rendezvous Server with the agreement state machine
// (control/coordinator.h) on one control thread. Lives in the launcher, or in rank 0's process when another launcher
// started the ranks.
//
// Holds nothing that training needs in its steady state; when it is gone the ranks end with an error that says so.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/task.h"
#include "runtime/base/types.h"
#include "runtime/control/coordinator.h"
#include "runtime/rendezvous/server.h"

namespace sirtaki::hub {

// What the owner of a hub may want to tell its user. Called on the hub's thread; must not block.
struct CoordinatorServerEvents {
  MoveFunction<void(const rendezvous::Membership&)> on_epoch;
  MoveFunction<void(Rank, const Status&)> on_lost;
  MoveFunction<void(Rank)> on_left;                   // in order
  MoveFunction<void(const std::string&)> on_warning;  // stall reports and the like, one line each
};

struct CoordinatorServerOptions {
  rendezvous::ServerOptions server;
  Duration stall_warn = std::chrono::seconds(60);  // a rank is alive but late: say so
  Duration stall_fail = std::chrono::minutes(30);  // give the operation up
  Duration stuck_after = std::chrono::seconds(1);  // provably stuck for so long: error on all ranks
  control::CoordinatorOptions coordinator;
};

class CoordinatorServer {
 public:
  static Result<std::unique_ptr<CoordinatorServer>> start(CoordinatorServerOptions options,
                                                          CoordinatorServerEvents events);
  virtual ~CoordinatorServer() = default;  // closes the port, ends the thread

  virtual std::uint16_t port() const = 0;
  // Any thread. See rendezvous::Server::report_exit.
  virtual void report_exit(Rank rank, std::string what) = 0;
  // Any thread. Waits until no member is connected, at most `grace`; true when that was reached.
  virtual bool drain(Duration grace) = 0;
};

}  // namespace sirtaki::hub
