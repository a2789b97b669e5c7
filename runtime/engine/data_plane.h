// DataPlane: the transport and the collectives backend of one epoch, brought up and down.
//
// Owned by: Session. Methods are called from the session's own thread and do their work on the loop; collectives() is
// used on the loop.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/task.h"
#include "runtime/net/collectives.h"
#include "runtime/net/point_to_point.h"
#include "runtime/rendezvous/asio_loop.h"
#include "runtime/rendezvous/membership.h"
#include "runtime/rendezvous/secret.h"

namespace sirtaki::engine {

class DataPlane {
 public:
  // One rank: no socket.
  static Result<std::unique_ptr<DataPlane>> single(rendezvous::AsioLoop& loop, const Config& config);
  // Opens the data port.
  static Result<std::unique_ptr<DataPlane>> listen(rendezvous::AsioLoop& loop, const rendezvous::Secret& secret,
                                                   const Config& config);
  virtual ~DataPlane() = default;

  // Where the others reach this rank. `control_address`: the local address that routes to the coordinator.
  virtual Result<std::vector<std::string>> endpoints(const std::string& control_address) const = 0;
  // Connects to all ranks; blocks within control.connect_timeout, polls `interrupted` ten times a second.
  virtual Status connect(const rendezvous::Membership& membership, Rank rank,
                         const std::function<bool()>& interrupted) = 0;
  // Called on the loop when a connection ends without a good-bye. Set before connect().
  virtual void set_on_peer_lost(std::function<void(Rank, const Status&)> callback) = 0;
  virtual net::Collectives& collectives() = 0;
  // Beneath them, of all ranks; as long as they are there.
  virtual net::PointToPoint& link() = 0;
  // Ends what is in flight and closes in order, within a bound; frees everything on the loop.
  virtual void close() = 0;
  // [{"peer": 1, "bytes_sent": ..., ...}]; loop thread.
  virtual std::string peers_json() const = 0;
  // How large data travels: "local", "tcp", "shared memory", or both where several hosts have several ranks.
  virtual std::string_view path() const = 0;
  // Why it does not travel through shared memory between ranks of one host; empty otherwise. For the log.
  virtual std::string_view path_note() const { return {}; }
};

}  // namespace sirtaki::engine
