// Roster: the members of an elastic job, and the beginning and end of its epochs.
//
// Phases: kWaiting (too few members) -> kForming (members of the next epoch are known, and their programs arrive) ->
// kRunning -> kForming (a member is lost: survivors freeze, and report with their request for the next epoch), ...,
// kDone.
// A candidate is a process outside of the epoch; it is armed once it waits for the next one. Armed candidates make the
// running epoch end behind a step that all members agree on (ChangeWanted). They come into an epoch only if all
// survivors with state admit them: nobody knows the needs of a new rank in a program that does not say so. A member
// that has to leave makes the epoch end in the same way, and parts from the others when all ask for the next one, if
// enough are left of which one that stays has the state. Else it stays for another epoch. If all have to leave, they
// do, and the job ends.
//
// Guarantees: one membership an epoch, with growing numbers. One verdict an epoch, the same for all survivors: it comes
// with the next epoch, when all of them have reported. A report counts although its rank is lost later. A member
// whose connection has ended never comes back into its epoch, and what it still sends is ignored. No epoch forms
// without a member that has the state of the job, once there is one. The job ends, with the reason, if too few are
// left, which no member that leaves brings about. A new member that does not get the state holds the others up for
// `state_timeout` at most. Of two members that could not connect to each other in two epochs in a row, one is given up,
// if enough are left, and more than half of all.
//
// Pure: no clock, no I/O. Owned by the hub, beside the Coordinator of each epoch. Events in, actions out, in order.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/control/elastic/messages.h"

namespace sirtaki::control {

// One control connection of a member; numbers are never used again.
using Connection = Id<struct ConnectionTag, std::uint64_t>;

struct RosterOptions {
  int start = 1;                                        // processes that are started; slots 0..start-1
  int min = 1;                                          // fewest members of an epoch
  int max = 0;                                          // most members of an epoch; 0: `start`, and nobody joins later
  bool refills = false;                                 // processes may come for the slots of members that have left
  bool gives_up_unconnected = true;                     // one of two members that cannot connect to each other
  Duration start_timeout = std::chrono::seconds(60);    // from the first arrival to the first epoch
  Duration wait_timeout = std::chrono::minutes(10);     // time in kWaiting, if more processes may come
  Duration regroup_timeout = std::chrono::minutes(30);  // time that survivors wait for the program of another one
  Duration state_timeout = std::chrono::minutes(10);    // time in which a new member gets the state of the job
  Duration linger = std::chrono::milliseconds(20);      // from a loss to the next epoch: losses come in groups
  // The job ends after so many epochs in a row, each shorter than `repeat_within`, that ended without a loss and
  // without a step that counts: the next one would end in the same way.
  int most_repeats = 10;
  Duration repeat_within = std::chrono::minutes(1);
};

class Roster {
 public:
  enum class Phase : std::uint8_t { kWaiting, kForming, kRunning, kDone };

  struct Send {
    Connection to;
    RosterNotice notice;
  };
  // Closes the connection and tells the process why.
  struct Close {
    Connection connection;
    Status why;
  };
  // A new epoch with these members, indexed by rank; Send of the notice to each of them, with its rank, follows.
  struct Form {
    Epoch epoch;
    std::vector<Connection> members;
    EpochFormed notice;
  };
  // The job is over, in order if the code is kShutdown. JobEnds has been sent to all.
  struct End {
    Status why;
  };
  // A member that had to leave has done so in order. Tells the process, and closes the connection. Form follows, or End
  // if all have left.
  struct Part {
    Connection connection;
    Rank rank = -1;  // in the epoch that has ended
  };
  using Action = std::variant<Send, Close, Form, End, Part>;

  explicit Roster(RosterOptions options);

  // ---- events ----
  // A process has connected and proved the secret.
  void on_hello(Connection from, MemberId id, TimePoint now);
  void on_regroup(Connection from, const Regroup& regroup, TimePoint now);
  void on_admission(Connection from, const Admission& admission, TimePoint now);
  // The process has to leave the job. It goes on until the end of an epoch at which it can.
  void on_leaving(Connection from, TimePoint now);
  // The process leaves in order; its connection ends.
  void on_departure(Connection from, const Departure& departure, TimePoint now);
  // The connection or the process has ended, or it is silent.
  void on_lost(Connection from, const Status& cause, TimePoint now);
  // Says whether a process may still come for this slot; a hello of the slot revokes it. Slots 0..start-1 are expected
  // from the beginning. In a job that grows, so is a slot whose process is lost after the first epoch has formed.
  void on_expected(int slot, bool expected, TimePoint now);
  // No process comes for this slot any more, whatever happens to the present one.
  void on_given_up(int slot, TimePoint now);
  void on_tick(TimePoint now);
  std::optional<TimePoint> next_tick() const;

  std::vector<Action> take_actions() { return std::exchange(actions_, {}); }

  Phase phase() const { return phase_; }
  Epoch epoch() const { return epoch_; }
  // Returns the most members of an epoch. Further candidates wait until one is lost or leaves.
  std::size_t max_members() const { return static_cast<std::size_t>(options_.max > 0 ? options_.max : options_.start); }
  // Returns whether new processes may come into the next epoch.
  bool admits() const;
  // Returns whether this process is connected and has the state of the job.
  bool has_state(Connection connection) const;
  // Number of members that held a verdict's results wrongly; always 0 unless there is a defect.
  int broken() const { return broken_; }
  // Returns everything that decides about the future, without times: for logs and for tests.
  std::string describe() const;

 private:
  struct Person {
    MemberId id;
    Rank rank = -1;  // in the present or last epoch; -1: candidate
    bool has_state = false;
    bool admits = false;  // new processes
    bool waits = false;   // for the next epoch
    bool leaves = false;  // at the first change at which it can
    TimePoint state_by;   // end of the time in which a new member gets the state, since its last epoch began

    // A member that others wait for; one that asks for the next epoch is alive, and begins anew there.
    bool lacks_state() const { return rank >= 0 && !has_state && !waits; }
  };
  using People = std::map<Connection, Person>;
  using Reports = std::vector<std::optional<StreamReports>>;          // indexed by rank; nullopt: none yet
  using Pairs = std::map<std::pair<Connection, Connection>, Status>;  // the smaller one first; why it was reported

  // roster.cc
  void close(Connection connection, const Status& why);
  void broke_protocol(Connection connection, const std::string& what, TimePoint now);
  void remove(Connection connection, const Status& cause, TimePoint now);
  void forget(People::iterator person);
  void on_report(const Person& person, const Regroup& regroup, TimePoint now);
  void on_unreachable(Connection from, const Regroup& regroup);
  void end_epoch(const LostRank& lost, TimePoint now);
  void exclude_broken();
  void want_change();
  void finish(const Status& why);

  // roster_form.cc
  void settle(TimePoint now);
  void settle_first(TimePoint now);
  void settle_next(TimePoint now);
  void wait_for_more(std::size_t present, TimePoint now);
  void give_up(Connection connection, const std::string& what, TimePoint now);
  void give_up_missing(TimePoint now);
  void give_up_fresh(TimePoint now);
  bool count_repeats(TimePoint now);
  bool give_up_unconnected(const Pairs& before);
  void form(const std::vector<Connection>& members, TimePoint now);
  std::size_t coming() const;
  std::string too_few_text(std::size_t present) const;
  std::vector<Connection> survivors() const;  // sorted by rank
  std::vector<Connection> leavers() const;    // those that have to leave and can
  void part(const std::vector<Connection>& leavers);
  bool all_wait() const;  // all survivors wait for the next epoch
  std::vector<Connection> candidates() const;
  std::vector<Connection> armed() const;  // candidates that wait for the next epoch
  bool joins() const;                     // some of them may come into it, beside all members
  std::size_t min_members() const { return static_cast<std::size_t>(options_.min); }
  std::string losses_text() const;

  RosterOptions options_;
  Phase phase_ = Phase::kWaiting;
  Epoch epoch_;
  People people_;
  std::map<int, std::uint32_t> incarnations_;  // newest one of each slot
  std::set<int> expected_;                     // slots for which a process may come
  std::set<int> given_up_;                     // slots for which no process comes after the present one

  // The present or last epoch:
  Reports reports_;
  Pairs unconnected_;  // members that could not connect to each other, as one of them has reported
  std::vector<LostRank> lost_;
  bool ended_ = true;  // a member is lost, and the others know
  bool done_ = false;  // a member has come to the end of the program
  std::uint32_t change_ = 0;
  bool change_wanted_ = false;

  struct Repeats {
    int count = 0;
    StreamVerdicts positions;  // at the end of the last epoch; some streams begin at 0 in each epoch
    TimePoint since;           // beginning of the present epoch
    Pairs unconnected;         // in the last epoch, if it has ended without a loss
  };
  Repeats repeats_;

  std::optional<TimePoint> start_by_;
  std::optional<TimePoint> wait_by_;
  std::optional<TimePoint> regroup_by_;
  std::optional<TimePoint> form_at_;
  int broken_ = 0;
  std::vector<Action> actions_;
};

}  // namespace sirtaki::control
