// World: an elastic job as a state machine small enough to explore: the roster, processes that train, the messages
// under way between them, and the faults that hit them. One stream; a step is working, complete, or passed. A process
// that joins has the state of the job, and gives it to others, when it has passed its first step.
//
// The network between the processes delivers anything that was sent: a rank can complete a step once all members of its
// epoch have begun it, and pass it once all are complete, whether they still live or not. That it was not delivered is
// the same as that the rank was slower.
#pragma once

#include <array>
#include <string>
#include <variant>
#include <vector>

#include "runtime/control/elastic/roster.h"

namespace sirtaki::control {

inline constexpr int kProcesses = 4;  // those beyond RosterOptions::start are candidates
inline constexpr StreamId kWorldStream(1);

enum class Fault : std::uint8_t {
  kKill,    // the process ends; its messages arrive
  kStop,    // the process never runs again, and the hub gives it up: its messages are not read
  kDelay,   // the hub gives the process up; it goes on until it reads that, and comes back
  kCut,     // the connection breaks; the process comes back
  kHang,    // the program of a new process goes on no more before it has the state; its connection stays
  kNotice,  // the process has to leave
  kApart,   // the process and the one of the next slot cannot exchange data until one of them has been given up
};
inline constexpr Fault kFaults[] = {Fault::kKill, Fault::kStop,   Fault::kDelay, Fault::kCut,
                                    Fault::kHang, Fault::kNotice, Fault::kApart};

enum class Order : std::uint8_t {
  kAny,      // every move at any time
  kReduced,  // moves that commute with those of others come first; a fault comes before or after each of them
};

class World {
 public:
  World(RosterOptions options, int steps, Order order);

  enum class Kind : std::uint8_t { kStart, kSend, kReceive, kComplete, kPass, kUnable, kTick, kFault };
  struct Move {
    Kind kind = Kind::kStart;
    int process = 0;
    Fault fault = Fault::kKill;
    std::string text() const;
  };

  // Returns the moves that are possible without a fault.
  std::vector<Move> moves() const;
  std::vector<Move> faults() const;
  void make(const Move& move);
  // Returns a text that is equal for states with the same future.
  std::string key() const;
  // Checks the state in which no move is left. Returns the invariant that is broken; empty: none.
  std::string check_end() const;
  // Returns the state of the roster for people.
  std::string describe() const { return roster_.describe(); }
  // The first invariant that was found broken; empty: none.
  const std::string& broken() const { return broken_; }

 private:
  struct Lost {};
  struct Closed {
    Code why = Code::kPeerLost;
  };
  using Up = std::variant<RosterReport, Lost>;
  using Down = std::variant<RosterNotice, Closed>;
  using Log = std::vector<std::uint32_t>;  // the epoch in which each step was committed

  enum class Mode : std::uint8_t { kUnborn, kOutside, kRunning, kEnded };
  struct Process {
    Mode mode = Mode::kUnborn;
    bool dead = false;
    bool hung = false;
    bool hit = false;   // a fault has hit it
    bool told = false;  // it has to leave, and the hub knows
    int apart = -1;     // slot of the process with which it cannot exchange data
    bool open = false;  // the hub listens to its connection
    Connection connection;
    std::uint32_t epoch = 0;
    std::uint32_t base_change = 0;
    std::uint32_t change = 0;  // highest number that it knows
    bool complete = false;     // the step log.size() is
    bool has_state = false;
    Log log;
    std::vector<Up> up;
    std::vector<Down> down;
  };
  // The messages that the members of an epoch have sent to each other.
  struct Place {
    bool member = false;
    Rank rank = -1;
    std::size_t begun = 0;                // steps
    std::vector<std::uint32_t> complete;  // the change number that the rank has put into the gate of each step
  };
  struct EpochRecord {
    Log log;  // at the beginning
    std::array<Place, kProcesses> places;
  };

  static bool begins_with(const Log& log, const Log& start);
  bool runs(const Process& p) const { return !p.dead && !p.hung && p.mode != Mode::kUnborn; }
  bool may_hang(int slot) const;
  bool may_part(int slot) const;
  // Returns the rank in its epoch that this process cannot exchange data with; -1: none.
  Rank unreachable_of(int slot) const;
  void reunite(Process& p);
  void freeze(int slot, Rank unreachable);
  bool may_complete(const Process& p) const;
  bool commutes(const Move& move) const;
  bool in_use(std::uint32_t epoch) const;
  EpochRecord& record(std::uint32_t epoch) { return epochs_.at(epoch - 1); }
  const EpochRecord& record(std::uint32_t epoch) const { return epochs_.at(epoch - 1); }
  bool may_pass(const Process& p) const;
  void connect(Process& p, int slot);
  void hit(int slot, Fault fault);
  void pass(int slot);
  void commit(Process& p);
  void take_state(Process& p);
  void settle(Process& p, const StreamVerdicts& verdict);
  void end_epoch(int slot, std::uint32_t change);
  // Returns the place of a rank whose last step but this one is committed. Ranks with an odd slot name the step before.
  StreamReports place_of(int slot, StepState state) const;
  void receive(int slot);
  void read(int slot, const EpochEnds& notice);
  void read(int slot, const ChangeWanted& notice);
  static void read(int /*slot*/, const Announced& /*notice*/) {}  // The hub alone sends it.
  void read(int slot, const EpochFormed& notice);
  void read(int slot, const JobEnds& notice);
  void deliver_up(int slot);
  void act();
  void on_part(const Roster::Part& part);
  void on_form(const Roster::Form& form);
  void check_leavers(const Roster::Form& form);
  int slot_of(Connection connection) const;
  void expect(bool holds, const std::string& what) { broken_ = !holds && broken_.empty() ? what : broken_; }

  RosterOptions options_;
  std::size_t steps_;
  Order order_;
  Roster roster_;
  TimePoint now_{std::chrono::seconds(1)};
  std::array<Process, kProcesses> processes_;
  std::vector<EpochRecord> epochs_;  // number 1 first
  std::uint64_t connections_ = 0;
  Log job_log_;  // log with which the last epoch began
  std::optional<Status> end_;
  bool all_left_ = false;  // the job has ended because all members had to leave
  std::string broken_;
};

}  // namespace sirtaki::control
