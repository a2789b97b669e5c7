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

#include "runtime/base/config/config.h"
#include "runtime/base/task.h"
#include "runtime/engine/epoch/control_plane.h"
#include "runtime/net/collectives/collectives.h"
#include "runtime/net/link/point_to_point.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::engine {

class DataPlane {
 public:
  // One rank: no socket.
  static Result<std::unique_ptr<DataPlane>> single(rendezvous::AsioLoop& loop, const Config& config);
  // Opens the data port of one of `ranks` ranks, at the address that the others are told, if that is one.
  // `control_address`: the local address that routes to the coordinator. The configuration outlives the plane.
  static Result<std::unique_ptr<DataPlane>> listen(rendezvous::AsioLoop& loop, const rendezvous::Secret& secret,
                                                   const Config& config, int ranks, std::string control_address);
  virtual ~DataPlane() = default;

  // Where the others reach this rank.
  virtual Result<std::vector<std::string>> endpoints() const = 0;
  // Calls connect(), which ends at once when `control` hears that the job is over. A rank that cannot connect ends the
  // start of the job, so that all learn whose fault that is, and the same. Before control.begin().
  Status start(ControlPlane& control, const rendezvous::Membership& membership, Rank rank,
               const std::function<bool()>& interrupted);
  // Connects to all ranks; blocks within control.connect_timeout, polls `interrupted` ten times a second.
  virtual Status connect(const rendezvous::Membership& membership, Rank rank,
                         const std::function<bool()>& interrupted) = 0;
  // Ends connect() at once, and everything in flight, with `cause`. Loop thread.
  virtual void abort(const Status& cause) = 0;
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

 protected:
  virtual rendezvous::AsioLoop& loop() = 0;
};

}  // namespace sirtaki::engine
