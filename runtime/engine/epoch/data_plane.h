// DataPlane: starts and ends the transport and the collectives backend of one epoch.
//
// Owned by Session. Threads: methods run on the thread that opens or closes the session and do their work on the loop,
// unless a comment says otherwise; collectives() and link() are used on the loop.
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
  // Makes the data plane of a job of one rank, without sockets.
  static Result<std::unique_ptr<DataPlane>> single(rendezvous::AsioLoop& loop, const Config& config);
  // Opens the data port of one of `ranks` ranks. The port listens on the published address only, if there is just one.
  // `control_address` is the local address that routes to the coordinator. `config` must outlive the data plane.
  static Result<std::unique_ptr<DataPlane>> listen(rendezvous::AsioLoop& loop, const rendezvous::Secret& secret,
                                                   const Config& config, int ranks, std::string control_address);
  virtual ~DataPlane() = default;

  // Returns the addresses at which other ranks reach this rank.
  virtual Result<std::vector<std::string>> endpoints() const = 0;
  // Calls connect(), and aborts it when `control` reports the end of the job. If this rank cannot connect and the
  // coordinator knows no cause, control.unable() says what ends. Call this before control.begin().
  Status start(ControlPlane& control, const rendezvous::Membership& membership, Rank rank,
               const std::function<bool()>& interrupted);
  // Connects to all ranks. Blocks for control.connect_timeout at most, and polls `interrupted` ten times a second.
  virtual Status connect(const rendezvous::Membership& membership, Rank rank,
                         const std::function<bool()>& interrupted) = 0;
  // Returns the ranks with which no connection had come about when the time of connect() was over.
  virtual std::vector<Rank> unreachable() const { return {}; }
  // Ends connect() and all operations in flight with `cause`. On the loop.
  virtual void abort(const Status& cause) = 0;
  // Sets the function that runs on the loop when a connection ends without a farewell. Call this before connect().
  virtual void set_on_peer_lost(std::function<void(Rank, const Status&)> callback) = 0;
  virtual net::Collectives& collectives() = 0;
  // Returns the link between all ranks that collectives() uses; valid as long as collectives().
  virtual net::PointToPoint& link() = 0;
  // Ends operations in flight and closes connections in order, within a time limit; frees all members on the loop.
  virtual void close() = 0;
  // The same without a farewell to the peers, which may be dead. Call abort() first.
  virtual void drop() = 0;
  // Returns [{"peer": 1, "bytes_sent": ..., ...}]. On the loop.
  virtual std::string peers_json() const = 0;
  // Returns the shortest round trip to the farthest rank; 0 while none is known. On the loop.
  virtual Duration round_trip() const { return Duration(0); }
  // Returns the transport of large data: "local", "tcp", "shared memory", or both of the latter if several hosts have
  // several ranks.
  virtual std::string_view path() const = 0;
  // Returns the reason, for the log, if ranks of one host do not use shared memory; empty otherwise.
  virtual std::string_view path_note() const { return {}; }

 protected:
  virtual rendezvous::AsioLoop& loop() = 0;
};

}  // namespace sirtaki::engine
