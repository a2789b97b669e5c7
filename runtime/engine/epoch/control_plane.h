// ControlPlane: the connection to the coordinator, which implements the ControlLink of the engine.
//
// A job of one rank has a coordinator on the same loop. A larger job uses the rendezvous client, which has a thread of
// its own. With more ranks than the fan-out, a TreeNode carries the agreement messages over the tree of relays.
// Owned by Session. Threads: send() runs on the loop of the engine, to which all events are posted.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/config/config.h"
#include "runtime/engine/epoch/control_line.h"
#include "runtime/engine/epoch/control_link.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::engine {

// Callbacks of a ControlPlane, called on the loop of the engine.
struct ControlEvents {
  std::function<void(ConstBytes)> message;
  std::function<void(Rank, const Status&)> lost;
  std::function<void(Rank)> left;  // with a tree of relays, only after `cut`; RanksLeft reports departures before
  std::function<void(const Status&)> disconnected;
  // The relay above has left, so this rank can agree on nothing new. `needed`: this rank has just tried to.
  std::function<void(const Status&, bool needed)> cut;
  std::function<void(const std::string&)> warning;  // for the log of this rank
};

class ControlPlane : public ControlLink {
 public:
  // Makes the control plane of a job of one rank. `loop` is the loop of the engine. Events that occur before begin()
  // are delivered by it.
  static std::unique_ptr<ControlPlane> single(rendezvous::AsioLoop& loop);
  // Connects to the coordinator at `server`. This function and join() return kAborted once `interrupted` (may be empty)
  // returns true.
  static Result<std::unique_ptr<ControlPlane>> connect(rendezvous::AsioLoop& loop, const Config& config,
                                                       const std::string& server, const rendezvous::Secret& secret,
                                                       const std::function<bool()>& interrupted);

  // Uses a connection of an elastic job for its next epoch.
  static std::unique_ptr<ControlPlane> over(rendezvous::AsioLoop& loop, const Config& config,
                                            std::shared_ptr<ControlLine> line,
                                            const std::function<bool()>& interrupted);

  // Returns the local address that routes to the coordinator.
  virtual std::string local_address() const = 0;
  // Waits until all ranks have joined.
  virtual Result<rendezvous::Membership> join(const rendezvous::JoinRequest& request) = 0;
  // Returns the rank that join() has brought.
  virtual Rank rank() const { return 0; }
  // Returns what ends if this rank cannot connect to the others.
  virtual Unable unable() const { return Unable::kEndsJob; }
  // Sets the cause with which this rank asks for the next epoch.
  virtual void set_cause(const Status& /*why*/) {}
  // Sets the ranks to which this one could not connect in the epoch that join() has returned.
  virtual void set_unreachable(const std::vector<Rank>& /*ranks*/) {}
  // Ends the use of the connection without a word to the coordinator and returns it; null if there is none. No event is
  // delivered and nothing is sent afterwards. Never on the loop.
  virtual std::shared_ptr<ControlLine> detach() { return nullptr; }
  // Calls `broken` once for the first event between join() and begin() that ends the job: a lost rank, a lost
  // coordinator or an error that another rank reports. begin() delivers that event, too. On the loop.
  virtual void watch(std::function<void(const Status&)> broken) = 0;
  // Starts the delivery of events. On the loop.
  virtual void begin(ControlEvents events) = 0;
  // Leaves the job in order; no event is delivered afterwards. Never on the loop.
  virtual void leave() = 0;
  // Waits until no other rank reaches the coordinator through this one, for about control.shutdown_grace at most.
  // Requires leave() first; call this when all other parts of the session are closed.
  virtual void relay_on() {}
  virtual std::uint64_t messages_sent() const = 0;
  virtual std::uint64_t wakeups() const = 0;  // wakeups of the control thread
};

}  // namespace sirtaki::engine
