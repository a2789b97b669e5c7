// ElasticHub: lets the roster (control/elastic/roster.h) decide about the epochs of an elastic job. It translates
// events of the rendezvous server into events of the roster, and actions of the roster into calls of the server.
//
// The reports of members about their steps come with their requests for the next epoch, and the verdict goes with it.
//
// Owned by CoordinatorServer. Threads: the loop of the server.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/control/elastic/roster.h"
#include "runtime/hub/coordinator_server.h"
#include "runtime/rendezvous/server.h"

namespace sirtaki::hub {

class ElasticHub {
 public:
  struct Events {
    std::function<void(const rendezvous::Membership&)> formed;
    std::function<void()> ended;  // the epoch, before its members are notified
    std::function<void(const Survived&)> survived;
    std::function<void(const NewRank&)> new_rank;
    std::function<void(bool)> admits;               // the members of the epoch admit new ranks, or do not any more
    std::function<void(Rank, const Status&)> lost;  // a slot; `over` follows
    std::function<void(const Status&)> over;
    std::function<void(int)> connected;  // number of processes, after each change
  };
  // `places`: slots of the job, which are more than its most members if it has spares.
  ElasticHub(Loop& loop, control::RosterOptions options, int places, Events events);
  ~ElasticHub() { loop_.cancel(tick_); }

  // The events of rendezvous::ServerHandler.
  void on_waiting(rendezvous::Server& server, rendezvous::PeerId peer, Rank slot, ConstBytes report);
  void on_report(rendezvous::Server& server, rendezvous::PeerId peer, ConstBytes report);
  void on_quit(rendezvous::Server& server, rendezvous::PeerId peer, bool at_end);
  void on_gone(rendezvous::Server& server, rendezvous::PeerId peer, const Status& cause);
  void on_absent(rendezvous::Server& server, Rank slot, const Status& cause);

  // Implements CoordinatorServer::give_up().
  void give_up(rendezvous::Server& server, Rank slot);
  // Implements CoordinatorServer::set_host().
  void set_host(Rank slot, const std::string& host);
  // Implements CoordinatorServer::begin().
  void begin(rendezvous::Server& server, int ranks);
  // Implements CoordinatorServer::announce().
  void announce(rendezvous::Server& server, Rank slot, bool on_its_way);
  // Returns the slot of a rank of the present or last epoch.
  Rank slot_of(Rank rank) const { return seats_.at(static_cast<std::size_t>(rank)); }

 private:
  bool vacate(Rank slot);
  bool lose(Rank slot, const Status& cause);
  void lose_process(Rank slot, const Status& cause);
  void lose_peer(rendezvous::PeerId peer, const Status& cause);
  void forget(rendezvous::PeerId peer);
  void lose_neighbours(rendezvous::Server& server, const std::string& host);
  std::string host_of(rendezvous::PeerId peer) const;
  std::string name_of(Rank slot) const;
  bool is_connected(Rank slot) const;
  void tell_state(rendezvous::PeerId peer, bool had_state);
  void expect_others();
  void tell_joined(const control::EpochFormed& formed, const rendezvous::Membership& membership);
  void act(rendezvous::Server& server);
  void perform(rendezvous::Server& server, const control::Roster::Send& send);
  void perform(rendezvous::Server& server, const control::Roster::Close& close);
  void perform(rendezvous::Server& server, const control::Roster::Form& form);
  void perform(rendezvous::Server& server, const control::Roster::End& end);
  void perform(rendezvous::Server& server, const control::Roster::Part& part);
  void end_epoch(rendezvous::Server& server);
  void tell_announced(rendezvous::Server& server);
  std::size_t announced() const;
  void tell_owner();
  std::string prospect(Epoch next) const;
  bool grows() const { return options_.max > 0; }

  Loop& loop_;
  control::Roster roster_;
  Events events_;
  TimerId tick_;
  const control::RosterOptions options_;
  const int places_;                                 // slots of the job
  std::map<rendezvous::PeerId, Rank> slots_;         // slots of connected processes
  std::set<rendezvous::PeerId> waiting_;             // for the next epoch
  std::set<Rank> remaining_;                         // slots of the start or of members, neither lost nor left
  std::map<Rank, std::uint32_t> starts_;             // number of processes that have come for a slot
  std::map<Rank, std::string> hosts_;                // hosts of slots whose losses take the others there along
  std::map<rendezvous::PeerId, std::string> homes_;  // the same of connected processes
  std::set<std::string> closed_hosts_;               // hosts of processes that the roster has closed
  bool admits_ = false;
  std::set<Rank> announced_;        // slots whose processes are on their way into the job or out of it
  std::size_t told_ = 0;            // number of these that the members know
  std::vector<Rank> seats_;         // slots of the present or last epoch, indexed by rank
  std::vector<std::string> names_;  // texts that name its members, indexed by rank
  bool arrived_ = false;            // some process has come, so programs do use the runtime
  bool in_epoch_ = false;
  std::optional<control::LostRank> cause_;           // loss for which the present epoch ends
  std::vector<std::pair<Rank, Status>> losses_;      // that the owner has not been told of
  std::vector<std::pair<Rank, Status>> departures_;  // the same for ranks that had to leave
  std::optional<Status> over_;
  bool told_over_ = false;
};

}  // namespace sirtaki::hub
