// Transport: PointToPoint over a mesh of authenticated TCP connections between the ranks of one epoch.
//
// Life: construct, listen(), publish port(), connect(), use, close(). The loss of a peer ends every operation with it
// at once and calls on_peer_lost; the owner ends other operations of the same tag. Destroying the transport without
// close() drops the callbacks of operations in flight without calling them.
// Used by the collectives. Owned by: the engine's session, one per epoch; tests. Thread: everything on the given
// AsioLoop, destructor included; callbacks run there, too, never inside the call that took them.
// Not for: encryption, relaying, reconnecting (a lost peer stays lost for the epoch).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/net/link/point_to_point.h"
#include "runtime/net/tcp/channel.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::net {

struct TransportOptions {
  std::string bind_address;      // empty: all, IPv4 and IPv6
  int ranks = 64;                // ranks of the job, which may all connect at once, beyond max_strangers
  std::uint16_t port_first = 0;  // both 0: any free port
  std::uint16_t port_last = 0;
  Duration connect_timeout = std::chrono::seconds(30);   // the whole mesh
  Duration handshake_timeout = std::chrono::seconds(5);  // one connection
  Duration close_timeout = std::chrono::seconds(2);
  Duration dead_time = std::chrono::seconds(30);  // the peer is lost after unacknowledged bytes for so long
  int max_strangers = 64;                         // connections that have not yet proved that they belong to the job
  // Limit of bytes in the kernel's queue of each connection. It is small, so that a message counts as sent when its
  // link is free for the next one; a peer on the same host has no link, and fewer wake-ups are worth more there.
  std::size_t unsent_bytes = 16 * 1024;
  std::size_t unsent_bytes_same_host = 512 * 1024;
  // An urgent message waits for the fragment being written: 3 ms on a link of 200 Mbit/s. Between ranks on one host
  // fragments take almost no time, and are as large as the limits allow.
  std::size_t fragment_bytes = 64 * 1024;
  ChannelLimits limits;  // equal on all ranks
};

struct PeerStats {
  Rank peer = -1;
  bool connected = false;
  std::uint64_t queued_bytes = 0;
  PeerCounters counters;
};

class Transport final : public PointToPoint {
 public:
  Transport(rendezvous::AsioLoop& loop, rendezvous::Secret secret, TransportOptions options = {});
  ~Transport() override;

  // Opens the data port. Returns kUnavailable with the range of ports if none is free.
  Status listen();
  std::uint16_t port() const;

  // Builds the mesh: each rank connects to the lower ones. Calls `done` with ok once every peer is connected, or with
  // the first error, which names rank, host and address. Call once, after listen().
  void connect(const rendezvous::Membership& membership, Rank rank, Done done);

  // Called at most once per peer, when its connection ends without kBye or violates the protocol.
  void set_on_peer_lost(MoveFunction<void(Rank, Status)> callback);
  // Called for each large transfer that ended.
  void set_on_sample(MoveFunction<void(const TransferSample&)> callback);
  std::vector<PeerStats> stats() const;
  // Returns the ranks with which no connection had come about when the time of connect() was over.
  const std::vector<Rank>& unreachable() const;

  // Ends operations in flight with kShutdown, sends kBye, and waits for that of the others, at most close_timeout.
  void close(Done done);

  Rank rank() const override;
  int size() const override;
  Loop& loop() override;
  bool one_host() const override;
  // Returns the shortest round trip of the connections, read from the sockets once a second.
  Duration round_trip() const override;
  void send(const Envelope& envelope, ConstBytes data, Done done) override;
  void recv(const Envelope& envelope, Bytes out, Done done) override;
  void cancel(TagGroup tags, Status cause) override;
  void forget(const TagGroup& tags) override;
  void fail(Status cause) override;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace sirtaki::net
