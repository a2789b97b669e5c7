// SimHub: the hub of a simulated elastic job: the real ElasticHub with its Roster and verdict, and the real Coordinator
// of each epoch, over a server without sockets.
//
// The server keeps the rules of rendezvous::Server about elastic jobs: who is a guest, waits, is a member or idle,
// which frames count in each of these states, and who is told at the end of an epoch, of a connection or of the job.
// Messages of a connection travel in order, in both directions, with a delay each. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/control/coordinator.h"
#include "runtime/hub/elastic_hub.h"
#include "runtime/rendezvous/server.h"
#include "tests/world/sim_loop.h"

namespace sirtaki::world {

// The end of a connection in a process; called on its control loop.
class HubClient {
 public:
  virtual ~HubClient() = default;
  virtual SimLoop& control_loop() = 0;
  virtual void on_seat(Rank rank, const std::vector<std::byte>& notice, const rendezvous::Membership& membership) = 0;
  virtual void on_rejected(const Status& why) = 0;
  virtual void on_lost(Rank rank, const Status& why) = 0;
  virtual void on_left(Rank rank) = 0;
  virtual void on_message(const std::vector<std::byte>& message) = 0;
  virtual void on_notice(const std::vector<std::byte>& notice) = 0;
  virtual void on_leave_ok() = 0;
};

class SimHub final : private rendezvous::Server {
 public:
  struct Deps {
    SimClock& clock;
    std::function<Duration()> delay;                 // travel time of a message
    std::function<void(const std::string&)> broken;  // an invariant
  };
  SimHub(Deps deps, control::RosterOptions options, int places);
  ~SimHub() override;

  // ---- calls of processes ----
  rendezvous::PeerId connect(HubClient& client, Rank slot);
  void join(rendezvous::PeerId peer, std::vector<std::byte> report);
  void message(rendezvous::PeerId peer, std::vector<std::byte> message);
  void report(rendezvous::PeerId peer, std::vector<std::byte> report);
  void leave(rendezvous::PeerId peer);
  // ---- faults ----
  // The process has ended: the hub reads all that was sent before. `after`: time until it notices.
  void end(rendezvous::PeerId peer, Duration after, const std::string& what);
  // The hub takes the process for silent, whatever is under way from it.
  void silence(rendezvous::PeerId peer);

  const SimLoop& loop() const { return *loop_; }
  // The end of the job, once there is one.
  const std::optional<Status>& over() const { return over_; }
  Epoch epoch() const { return epoch_; }
  // Returns whether the present epoch ends if this process is lost, or has ended already.
  bool ends_without(rendezvous::PeerId peer) const;

 private:
  using PeerId = rendezvous::PeerId;
  enum class State : std::uint8_t { kGuest, kWaiting, kMember, kIdle };
  struct Peer {
    PeerId id;
    HubClient* client = nullptr;
    Rank slot = -1;
    Rank rank = -1;
    State state = State::kGuest;
    TimePoint last_down;  // arrival of the last message
  };

  std::uint16_t port() const override { return 0; }
  void send(Rank to, ConstBytes message) override;
  void send_tree(Rank, ConstBytes) override {}
  void announce_leave(Rank) override {}
  void report_exit(Rank, const std::string&) override {}
  rendezvous::Membership form(Epoch epoch, const std::vector<PeerId>& peers,
                              const std::vector<std::vector<std::byte>>& notices) override;
  void notify(PeerId peer, ConstBytes notice) override;
  void end_epoch(Rank lost, const Status& why) override;
  void dismiss(PeerId peer, const Status& why) override;
  Duration clock_offset(Rank) const override { return {}; }
  std::uint64_t strangers() const override { return 0; }

  void carry(SimLoop& loop, TimePoint& last, Duration delay, Task task);
  void up(PeerId peer, Task task);
  void tell(Peer& peer, std::function<void(HubClient&)> call);
  void tell_members(const std::function<void(HubClient&)>& call);
  Peer* find(PeerId peer);
  void on_join(Peer& peer, const std::vector<std::byte>& report);
  void on_message(Rank from, ConstBytes bytes);
  void on_leave(Peer& peer);
  void on_end(Peer& peer, const Status& cause);
  void member_left(Rank rank);
  void notify_departures();
  void leave_seat(Peer& peer);
  void forget(Peer& peer);
  void act();
  void schedule_tick();

  Deps deps_;
  const control::RosterOptions options_;
  std::unique_ptr<SimLoop> loop_;
  hub::ElasticHub hub_;
  std::unique_ptr<control::Coordinator> coordinator_;
  std::map<PeerId, Peer> peers_;
  std::map<PeerId, TimePoint> last_up_;  // arrival of the last message
  std::vector<PeerId> members_;          // indexed by rank; 0: gone
  std::uint64_t next_peer_ = 1;
  Epoch epoch_;
  bool in_epoch_ = false;
  std::vector<Rank> departed_;  // that left, and the others do not know
  TimerId departures_;
  TimerId tick_;
  std::optional<Status> over_;
};

}  // namespace sirtaki::world
