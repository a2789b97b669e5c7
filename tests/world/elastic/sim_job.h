// SimJob: an elastic job in one thread and in virtual time, with faults at chosen events.
//
// Real: the roster, the verdict and the hub around them (hub/elastic_hub.h), the coordinator, and in every process the
// engine with its streams, commit gate and operations by name, over the real collectives. Simulated: threads (a loop
// each, in an order that the seed draws), time, the server without sockets (sim_hub.h), the control connection and the
// sessions of a process (sim_process.h), the sampler and the optimizer (training.h). Not here: authentication,
// heartbeats (silence is an event), the mesh of data connections and its failures, shared memory, GPUs, codecs, local
// updates, the state port, the launcher.
//
// Invariants: survivors count the same steps, with the same sums (V1); an epoch has one membership, and numbers grow
// (V2); a sum holds the samples of the members of its epoch alone (V3); models are equal behind every step and at every
// entry into an epoch (V4); each sample is in one step (V5); the job goes on soon after the last fault (V6); rank 0 has
// the state (V7); nothing is in flight at the end (V8); each callback comes once (V9); no survivor lacks a step that
// counts and comes back as a new process (V10).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/world/elastic/sim_hub.h"
#include "tests/world/elastic/sim_process.h"
#include "tests/world/sim_loop.h"

namespace sirtaki::world {

struct JobOptions {
  std::uint64_t seed = 1;
  int ranks = 2;
  int min = 1;
  int max = 0;  // above 0: another process comes for the slot of one that is lost or has left
  std::size_t steps = 3;
  bool changes = false;  // ranks agree on changes behind each step; needed for joins and leaves
  bool metric = false;   // an operation that nobody waits for begins with each step
  bool replan = true;
  Duration data_delay{};     // most of a usual message between ranks; zero: it has arrived when it is sent
  Duration control_delay{};  // most of a message of a control connection
};

enum class JobFault : std::uint8_t {
  kKill,    // the process ends, and its peers see the ends of their connections
  kVanish,  // the process ends, and only the hub notices soon
  kGiveUp,  // the hub takes a process that lives for lost
  kLeave,   // the process has to leave the job; needs JobOptions::changes
  kApart,   // the process and that of the next slot cannot connect to each other any more; the hub hears both
};

struct FaultAt {
  std::uint64_t event = 0;  // comes before the event with this number
  Rank slot = 0;
  JobFault fault = JobFault::kKill;
  Duration notice{};  // time until the hub notices the end of a process
};

class SimJob {
 public:
  explicit SimJob(JobOptions options);
  ~SimJob();

  // Runs the job to its end. Returns the first broken invariant; empty: none.
  std::string run(std::vector<FaultAt> faults);
  std::string describe() const;

  // ---- the course of a run ----
  // Returns the events that ran in a process of this slot, in [from, to).
  std::vector<std::uint64_t> events_of(Rank slot, std::uint64_t from, std::uint64_t to) const;
  // Returns the number of the event at which as many ranks had counted the step in both streams; 0: none.
  std::uint64_t counted_at(std::size_t step, int ranks) const;
  std::uint64_t events() const { return events_; }
  // Returns the number of the event at which the first step behind the last fault counted on all ranks; 0: none did.
  std::uint64_t recovered_at() const { return recovered_at_; }

  // ---- for processes ----
  const JobOptions& options() const { return options_; }
  SimClock& clock() { return clock_; }
  SimHub& hub() { return *hub_; }
  Duration draw_delay() { return draw(options_.control_delay); }
  std::shared_ptr<net::InprocGroup> group(Epoch epoch, int size);
  // Ends the connections of a dead rank after this time.
  void cut(std::shared_ptr<net::InprocGroup> group, Rank rank, Duration after);
  void broken(const std::string& what) { broken_ = broken_.empty() ? what : broken_; }
  void check_membership(const rendezvous::Membership& membership);
  void check_state(const SimProcess& process, Epoch epoch);
  void note_commit(const SimProcess& process, int stream);

 private:
  using Key = std::tuple<std::uint32_t, int, std::size_t>;  // epoch, stream, step

  Duration draw(Duration most);
  void start_process(Rank slot);
  SimProcess* present(Rank slot) const;
  void inject(const FaultAt& fault);
  void start_another(Rank slot);
  bool over() const;
  bool quiet() const;  // nothing is in flight in processes that no fault has hit
  std::string check_end() const;
  std::string check_end_of(const SimProcess& process, bool trained) const;
  std::string check_same_course() const;

  const JobOptions options_;
  SimClock clock_;
  std::unique_ptr<SimLoop> launcher_;
  std::unique_ptr<SimHub> hub_;
  std::vector<std::unique_ptr<SimProcess>> processes_;  // in the order of their starts
  std::map<std::uint32_t, std::shared_ptr<net::InprocGroup>> groups_;
  std::map<std::uint32_t, std::vector<std::int64_t>> members_;                 // members of each epoch, by rank
  std::map<std::uint32_t, std::vector<std::vector<CountedStep>>> beginnings_;  // state of each epoch, by stream
  std::map<Key, CountedStep> counted_;
  std::map<std::pair<std::size_t, int>, int> ranks_at_;        // step, stream -> ranks that have counted it
  std::map<std::pair<std::size_t, int>, std::uint64_t> when_;  // step, ranks -> event
  std::vector<std::int8_t> actors_;                            // slot that ran in each event; -1: none
  std::uint64_t events_ = 0;
  std::uint64_t last_fault_ = 0;
  TimePoint last_fault_time_;
  bool waits_for_step_ = false;                     // since the last fault
  Epoch next_epoch_;                                // the first epoch in which a step behind the last fault may count
  std::pair<std::uint32_t, std::size_t> recovery_;  // epoch and number of that step
  std::uint64_t recovered_at_ = 0;
  std::string broken_;
};

}  // namespace sirtaki::world
