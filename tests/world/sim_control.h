// SimControl: the control plane of a SimWorld: coordinator, relays, membership notices and the connections between
// them.
//
// The state machines of runtime/control are the real ones; time is modelled: each message travels, and each process
// (the coordinator, every rank) handles one message at a time at a cost. Counts the messages of every process. One
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/control/coordinator.h"
#include "runtime/control/relay.h"
#include "tests/world/sim_loop.h"

namespace sirtaki::world {

struct ControlOptions {
  int size = 2;
  int fanout = 0;  // fan-out of the tree of relays; 0: every rank has its own connection to the coordinator
  control::StallOptions stall;
  control::CoordinatorOptions coordinator;
  Duration death_notice = std::chrono::milliseconds(20);
  Duration heartbeat_interval{};  // zero: no heartbeats
  // Processor time of one message, and of each further item of a bundle.
  Duration send_cost{};
  Duration receive_cost{};
  Duration item_cost{};
};

// Messages of one process, sent and received.
struct Traffic {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t membership = 0;  // heartbeats and notices of ranks that left or were lost; part of sent and received
  Duration busy{};
};

// Callbacks of the control plane to one rank; they run on its loop.
struct ControlEvents {
  std::function<void(ConstBytes)> message;
  std::function<void(Rank, bool lost)> gone;
};

class SimControl {
 public:
  // `delay` returns the travel time of a message of so many bytes. `left` is called when the good-bye of a rank has
  // reached the coordinator.
  SimControl(SimClock& clock, ControlOptions options, std::function<Duration(std::size_t)> delay,
             std::function<void(Rank)> left);
  ~SimControl();

  // Adds a rank. Call it once for each rank, before any message is sent.
  void attach(Rank rank, SimLoop& loop, ControlEvents events);
  void start();

  void send(Rank from, const control::MemberMessage& message);
  void leave(Rank rank);
  // Kills the process of `rank`: its loop accepts no more tasks.
  void die(Rank rank);

  const Traffic& coordinator_traffic() const { return processes_.back()->traffic; }
  const Traffic& traffic(Rank rank) const { return processes_[static_cast<std::size_t>(rank)]->traffic; }
  std::uint64_t messages() const { return messages_; }  // without membership
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct Process {
    SimLoop* loop = nullptr;
    ControlEvents events;
    TimePoint free;  // earliest time at which it handles the next message
    Traffic traffic;
    std::vector<std::size_t> relays;  // indices of the relays it carries
    control::Bundle outbox;           // used with a tree only
    bool gone = false;
    bool left = false;
  };
  struct RelayNode {
    control::RelayPlace place;
    std::unique_ptr<control::Relay> relay;
    std::vector<std::size_t> below;  // indices of relays; empty: its children are ranks
    TimerId tick;
  };
  struct Parcel {
    std::size_t bytes = 0;
    std::size_t items = 1;
    bool membership = false;
  };
  using Place = std::size_t;  // place of a process: its rank; the coordinator has the last

  Place coordinator_place() const { return processes_.size() - 1; }
  void transmit(Place from, Place to, Parcel parcel, Task deliver);
  Duration occupy(Process& process, const Parcel& parcel, Duration cost);
  Duration in_order(Place from, Place to, Duration delay);
  void to_coordinator(Place from, control::Bundle bundle);
  void to_relay(Place from, std::size_t relay, control::Bundle bundle);
  void to_relay(Place from, std::size_t relay, const control::Spread& spread);
  void to_member(Place from, Rank to, const control::Spread& spread);
  void pump(std::size_t relay);
  void act();
  void schedule_tick();
  void announce(const std::vector<Rank>& ranks, bool lost);
  void tell_departures();
  void beat();

  SimClock& clock_;
  const ControlOptions options_;
  std::function<Duration(std::size_t)> delay_;
  std::function<void(Rank)> left_;
  std::unique_ptr<SimLoop> coordinator_loop_;
  control::Coordinator coordinator_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<RelayNode> relays_;
  std::map<std::pair<Place, Place>, TimePoint> last_arrival_;  // keeps messages of a connection in order
  TimerId tick_;
  std::vector<Rank> departed_;  // ranks that left and are not yet announced
  std::uint64_t messages_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace sirtaki::world
