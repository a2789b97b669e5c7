// ControlPlane: the connection to the coordinator, as the engine's ControlLink. For one rank, a coordinator on the same
// loop; for more, the rendezvous client on its own thread; for more than the fan-out, with this rank's part of the tree
// of relays, over which agreements travel.
//
// Owned by: Session. send() is called on the engine's loop; what arrives is posted to it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/base/config/config.h"
#include "runtime/engine/epoch/control_link.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::engine {

// Called on the engine's loop.
struct ControlEvents {
  std::function<void(ConstBytes)> message;
  std::function<void(Rank, const Status&)> lost;
  std::function<void(Rank)> left;  // with a tree of relays RanksLeft says so, until the way up is cut
  std::function<void(const Status&)> disconnected;
  // The relay above has left: nothing new can be agreed on. `needed`: this rank just tried to.
  std::function<void(const Status&, bool needed)> cut;
  std::function<void(const std::string&)> warning;  // for the log of this rank
};

class ControlPlane : public ControlLink {
 public:
  // `loop` is the engine's. Events are delivered from begin() on; what came earlier is kept until then.
  static std::unique_ptr<ControlPlane> single(rendezvous::AsioLoop& loop);
  static Result<std::unique_ptr<ControlPlane>> connect(rendezvous::AsioLoop& loop, const Config& config,
                                                       const std::string& server, const rendezvous::Secret& secret,
                                                       const std::function<bool()>& interrupted);

  virtual std::string local_address() const = 0;
  virtual Result<rendezvous::Membership> join(const rendezvous::JoinRequest& request) = 0;
  // Between join() and begin(): calls `broken` for the first thing that ends the job, a lost rank or coordinator or
  // what another rank has found. begin() delivers that event, too. On the loop.
  virtual void watch(std::function<void(const Status&)> broken) = 0;
  virtual void begin(ControlEvents events) = 0;  // on the loop
  // Leaves in order. No event after it. Not on the loop.
  virtual void leave() = 0;
  // After leave(), and when this rank has closed everything else: waits until no other rank speaks to the coordinator
  // over this one any more, for at most control.shutdown_grace since leave().
  virtual void relay_on() {}
  virtual std::uint64_t messages_sent() const = 0;
  virtual std::uint64_t wakeups() const = 0;  // of the control thread
};

}  // namespace sirtaki::engine
