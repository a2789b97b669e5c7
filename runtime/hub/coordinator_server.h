// CoordinatorServer: the coordinator of a job, a rendezvous Server with the agreement state machine
// (control/coordinator.h) on one control thread.
//
// Elastic jobs (option elastic.min): the loss of a rank ends the epoch, the survivors get kRanksChanged and form the
// next one with new ranks. Ranks in this interface are then slots: the ranks with which the processes were started. A
// job that grows has slots for elastic_max ranks and its spares, the first ones for the processes of the start.
//
// Owned by: the launcher, or the process of rank 0 if another launcher started the ranks. Steady-state training does
// not depend on its state, but ranks that lose their coordinator end with an error that says so.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/config/config.h"
#include "runtime/base/task.h"
#include "runtime/base/types.h"
#include "runtime/control/coordinator.h"
#include "runtime/rendezvous/server.h"

namespace sirtaki::hub {

// The loss of a rank that the others survive, or its departure.
struct Survived {
  Rank slot = -1;  // rank with which the lost process was started
  Status cause;    // names the rank in its last epoch, host, process and reason; kShutdown: it had to leave, and has
                   // done so in order
  // Number of the epoch that the survivors will form, or have formed at the start; 0: none, because the program has
  // come to its end on some rank, or all have left.
  Epoch next;
  int remaining = 0;     // number of survivors
  std::string prospect;  // text for the log about their future, such as go_on_text(); "" if `next` is 0
};

// A stage of a process that comes after the first epoch has formed.
struct NewRank {
  enum class Stage : std::uint8_t {
    kWaits,     // until the other ranks admit it
    kJoined,    // it is a member of an epoch
    kHasState,  // ... and has the state of the job
    kLost,      // before it has joined; a later loss is Survived
  };
  Rank slot = -1;  // its place, from which another process was lost, or which has had none
  Stage stage = Stage::kWaits;
  std::string text;  // kJoined: its rank in the epoch, host and process; kLost: the cause
  Epoch epoch;       // kJoined
  int size = 0;      // kJoined: number of ranks of the epoch
};

// Returns "2 ranks go on as epoch 3".
std::string go_on_text(int remaining, Epoch next);

// Events that the owner may report to the user. Called on the control thread; must not block.
struct CoordinatorServerEvents {
  MoveFunction<void(const rendezvous::Membership&)> on_epoch;
  MoveFunction<void(Rank, const Status&)> on_lost;
  MoveFunction<void(Rank)> on_left;                   // the rank has left in order
  MoveFunction<void(const std::string&)> on_warning;  // one line for the log, such as a stall report
  // Only in elastic jobs, where on_lost is called only for a loss that ends the job, before on_over. After an
  // earlier loss, also that of a rank that never joined, either on_survived is called, and the other ranks must be left
  // alone, or on_over, and none of them can go on.
  MoveFunction<void(const Survived&)> on_survived;
  // Only in jobs that grow (option elastic.max); on_admits: the program admits processes, or does not any more.
  MoveFunction<void(const NewRank&)> on_new_rank;
  MoveFunction<void(bool)> on_admits;
  // The job is over; called once. kShutdown: the program has come to its end on some rank, and no rank runs in an epoch
  // any more. Else the reason for which no epoch can form, such as too few ranks.
  MoveFunction<void(const Status& why)> on_over;
};

struct CoordinatorServerOptions {
  rendezvous::ServerOptions server;                // `size`: number of processes at the start
  Duration stall_warn = std::chrono::seconds(60);  // warn of an operation that waits so long for live ranks
  Duration stall_fail = std::chrono::minutes(30);  // then give the operation up
  Duration stuck_after = std::chrono::seconds(1);  // a deadlock that lasts so long is an error on all ranks
  control::CoordinatorOptions coordinator;
  int elastic_min = 0;   // fewest members of an epoch; 0: the job is not elastic
  int elastic_max = 0;   // most members of an elastic job that grows; 0: it does not
  int spares = 0;        // in a job that grows, slots beyond these: processes that wait until a member is lost
  bool refills = false;  // in a job that grows, processes may come for the slots of ranks that have left in order
  bool gives_up_unconnected = true;                      // one of two ranks that cannot connect to each other
  Duration regroup_timeout = std::chrono::seconds(600);  // time that survivors wait for each other
  Duration state_timeout = std::chrono::seconds(600);    // time in which a new rank gets the state
  // Bound of an epoch whose ranks do not get as far as to connect to each other; see RosterOptions.
  Duration repeat_within = std::chrono::minutes(1);
};

// Returns the choices of the options of a job. Address, secret, size and exit_report_wait of the server are left open.
CoordinatorServerOptions coordinator_options(const Config& config);

class CoordinatorServer {
 public:
  // Starts the control thread and listens. Any thread.
  static Result<std::unique_ptr<CoordinatorServer>> start(CoordinatorServerOptions options,
                                                          CoordinatorServerEvents events);
  // Closes the port and ends the thread.
  virtual ~CoordinatorServer() = default;

  virtual std::uint16_t port() const = 0;
  // Reports the end of the process of a rank, see rendezvous::Server::report_exit(). In an elastic job nothing follows
  // if the rank has left in order; else on_survived or on_over. Any thread.
  virtual void report_exit(Rank rank, std::string what) = 0;
  // In a job that grows, says that no process will come for the slot of a lost one any more. Any thread.
  virtual void give_up(Rank slot) = 0;
  // Says on which host the process of a slot runs; if one there is lost, all processes of that host are given up. "":
  // it takes none along. Any thread.
  virtual void set_host(Rank slot, std::string host) = 0;
  // In a job that grows, says how many processes are started if these are fewer than start() was told: those of the
  // first slots. Call it before any of them is started. Any thread.
  virtual void begin(int ranks) = 0;
  // In a job that grows, tells the ranks that a process for this slot is about to be started, or that the one there is
  // asked to leave; or that neither is so any more. The announcement ends by itself when the process arrives, says that
  // it leaves, has left, or is lost as a member. Ranks learn of no more processes to come than the job has room for.
  // Any thread.
  virtual void announce(Rank slot, bool on_its_way) = 0;
  // Waits at most `grace` until no member is connected; returns true if none is. Any thread.
  virtual bool drain(Duration grace) = 0;
};

}  // namespace sirtaki::hub
