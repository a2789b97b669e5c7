// ServerImpl: implementation of Server in server.cc (connections, heartbeats, losses), server_epochs.cc (joining,
// epochs) and server_elastic.cc (the same for elastic jobs). Threads: everything but the constructor runs on the loop
// thread.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/rendezvous/clock_filter.h"
#include "runtime/rendezvous/join_round.h"
#include "runtime/rendezvous/link/auth_listener.h"
#include "runtime/rendezvous/link/link.h"
#include "runtime/rendezvous/server.h"

namespace sirtaki::rendezvous {

class ServerImpl;

// One authenticated connection.
struct Peer final : LinkHandler {
  enum class State { kGuest, kWaiting, kMember, kIdle, kGone };  // kIdle: its epoch has ended (elastic jobs only)

  Peer(ServerImpl& owner, std::string from) : server(owner), address(std::move(from)) {}
  void on_frame(const Frame& frame) override;
  void on_end(const Status& cause) override;
  std::string text() const;  // returns "rank 3 (host node-b, process 4711)"

  ServerImpl& server;
  std::string address;
  std::shared_ptr<Link> link;
  State state = State::kGuest;
  PeerId id;
  Rank rank = -1;  // in an elastic job, in the present or last epoch
  Rank slot = -1;  // the first rank
  std::string hostname;
  std::int64_t pid = 0;
  ClockFilter clock;
  bool announced = false;  // the notice of its leave has been sent or is queued
  bool ended = false;      // the connection is over; conclude() waits for report_exit()
  TimerId verdict;
};

class ServerImpl final : public Server, public GateHandler {
 public:
  ServerImpl(AsioLoop& loop, ServerOptions options, ServerHandler& handler);
  ~ServerImpl() override;
  Status open();

  std::uint16_t port() const override { return listener_->port(); }
  void send(Rank to, ConstBytes message) override { send(FrameType::kMessage, to, message); }
  void send_tree(Rank to, ConstBytes message) override { send(FrameType::kTree, to, message); }
  void announce_leave(Rank rank) override;
  void report_exit(Rank rank, const std::string& what) override;
  Membership form(Epoch epoch, const std::vector<PeerId>& peers,
                  const std::vector<std::vector<std::byte>>& notices) override;
  void notify(PeerId peer, ConstBytes notice) override;
  void end_epoch(Rank lost, const Status& why) override;
  void dismiss(PeerId peer, const Status& why) override;
  Duration clock_offset(Rank rank) const override;
  std::uint64_t strangers() const override { return listener_->strangers(); }

  void on_guest(Guest guest) override;
  void on_gate_warning(const std::string& line) override;
  void on_frame(Peer& peer, const Frame& frame);
  void on_end(Peer& peer, const Status& cause);

 private:
  using Peers = std::map<Peer*, std::unique_ptr<Peer>>;

  // server.cc
  void send(FrameType type, Rank to, ConstBytes message);
  void on_pong(Peer& peer, ConstBytes payload);
  void ping(Peer& peer);
  void on_tick();
  void arm_tick(TimePoint next);
  void on_silence(Peer& peer, Duration silent);
  void broke_protocol(Peer& peer, const std::string& what);
  void conclude(Peer& peer, const Status& cause);
  void forget(Peer& peer);
  Peer* find(Rank slot) const;
  Peer* member(Rank rank) const;

  // server_epochs.cc
  void on_join(Peer& peer, ConstBytes payload);
  void on_leave(Peer& peer);
  bool gets_old_verdict(Peer& peer);
  void note_notified(Rank rank);
  Status exited_rank() const;
  void try_form();
  void fail_round(const Status& why);
  void reject(Peer& peer, const Status& why);
  void on_join_timeout();
  void arm_join_timer();
  void member_lost(Rank rank, const Status& cause);
  void member_left(Rank rank, bool announced);
  void notify_departures_soon();
  void notify_departures();
  void broadcast(FrameType type, ConstBytes payload);
  void end_epoch_if_empty();

  // server_elastic.cc
  void on_arrival(Peer& peer, JoinRequest request);
  Status admit(const JoinRequest& request) const;
  void leave_seat(Peer& peer);
  Peer* find(PeerId id) const;

  AsioLoop& loop_;
  const ServerOptions options_;
  ServerHandler& handler_;
  std::unique_ptr<AuthListener> listener_;
  Peers peers_;
  std::uint64_t next_peer_ = 1;
  TimerId tick_;
  TimePoint tick_due_;
  TimePoint awake_since_;  // last time at which this thread was found to have been stopped

  Epoch epoch_;
  std::vector<Peer*> members_;  // indexed by rank; null if gone
  int alive_ = 0;               // members that are not gone
  bool in_epoch_ = false;
  std::vector<Rank> departed_;  // have left, and the other members have no notice yet
  std::vector<Rank> left_;      // have left, and the handler has no notice yet
  TimerId departures_;

  JoinRound round_;
  std::vector<Peer*> waiting_;  // indexed by rank; null if absent
  TimerId join_timer_;
  TimePoint join_deadline_;
  std::map<Rank, std::string> exits_;  // reports of ranks that have not joined since
  Status old_verdict_;                 // error of the last failed attempt
  std::set<Rank> notified_;            // ranks that have received old_verdict_
  TimePoint old_verdict_ends_;
};

}  // namespace sirtaki::rendezvous
