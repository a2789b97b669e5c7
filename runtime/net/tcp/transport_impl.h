// Implementation of Transport; for transport*.cc only. Includes Asio.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/net/tcp/connection.h"
#include "runtime/net/tcp/transport.h"
#include "runtime/rendezvous/link/auth_listener.h"
#include "runtime/rendezvous/link/dialing.h"
#include "runtime/rendezvous/link/early.h"

namespace sirtaki::net {

// A turn is one piece of work on the loop: input that was read, or calls by the owner. At the end of a turn callbacks
// run and the frames they queued are written, so that the frames of one turn share a system call.
class Transport::Impl final : public Connection::Host,
                              public rendezvous::GateHandler,
                              public std::enable_shared_from_this<Impl> {
 public:
  Impl(rendezvous::AsioLoop& loop, rendezvous::Secret secret, TransportOptions options);

  // transport_mesh.cc
  Status listen();
  void connect(const rendezvous::Membership& membership, Rank rank, Done done);
  std::uint16_t port() const { return gate_ ? gate_->port() : std::uint16_t{0}; }

  // transport.cc
  void send(const Envelope& envelope, ConstBytes data, Done done);
  void recv(const Envelope& envelope, Bytes out, Done done);
  void cancel(const TagGroup& tags, const Status& cause);
  void forget(const TagGroup& tags) { tombstones_.forget(tags); }
  void fail(const Status& cause);
  void close(Done done);
  void destroy();
  std::vector<PeerStats> stats() const;
  const std::vector<Rank>& unreachable() const { return connecting_.missing; }
  bool one_host() const { return one_host_; }
  Duration round_trip();
  void on_progress() override;
  void on_end(Rank peer, const Status& cause) override;

  rendezvous::AsioLoop& loop_;
  MoveFunction<void(Rank, Status)> on_peer_lost_;
  MoveFunction<void(const TransferSample&)> on_sample_;
  Rank rank_ = -1;
  int size_ = 0;

 private:
  struct Hello {
    Epoch epoch;
    Rank rank = -1;
    Rank wanted = -1;  // the rank that it means to reach
    ChannelLimits limits;
    bool operator==(const Hello&) const = default;
  };
  struct Arrival {
    rendezvous::Greeted greeted;
    Hello hello;
  };
  // From connect() until its callback.
  struct Connecting {
    rendezvous::Early<Arrival> early;                           // authenticated before connect()
    std::vector<std::shared_ptr<rendezvous::Dialing>> dialers;  // index: rank; null if none
    Done done;
    TimerId timer;
    std::vector<Rank> missing;  // when the time was over
  };
  struct RoundTrip {
    Duration value = Duration(0);
    std::optional<TimePoint> read_at;
  };

  // transport_mesh.cc
  void on_guest(rendezvous::Guest guest) override;
  void on_gate_warning(const std::string& /*line*/) override {}
  void admit(Arrival arrival);
  void dial(Rank peer);
  void on_dialed(Rank peer, Result<rendezvous::Greeted> result);
  Status check_welcome(Rank peer, ConstBytes bytes) const;
  void attach(Rank peer, rendezvous::Greeted greeted, std::optional<std::uint8_t> push);
  Status check_limits(Rank peer, const ChannelLimits& theirs) const;
  void mesh_progress();
  void mesh_failed(const Status& cause);
  void on_connect_deadline();
  std::string describe(Rank peer) const;

  // transport.cc
  Channel* channel(Rank peer);
  Status refuse(const Envelope& envelope) const;
  void schedule_turn();
  void end_turn();
  void run_callbacks();
  void flush_all();
  void close_progress();

  const rendezvous::Secret secret_;
  const TransportOptions options_;
  std::unique_ptr<rendezvous::AuthListener> gate_;
  Channel::Shared shared_;
  Completions completions_;
  Tombstones tombstones_;
  std::vector<TransferSample> samples_;

  Connecting connecting_;
  std::optional<rendezvous::Membership> membership_;
  std::vector<std::shared_ptr<Connection>> connections_;  // index: rank; null for this one and until connected
  std::vector<Status> lost_;                              // index: rank
  bool one_host_ = false;
  RoundTrip round_trip_;

  Status failed_;
  bool turn_scheduled_ = false;
  bool in_turn_ = false;
  bool destroyed_ = false;
  bool closing_ = false;
  Done close_done_;
  TimerId close_timer_;
};

}  // namespace sirtaki::net
