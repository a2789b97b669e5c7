// StallInspector: tells a job that is provably stuck from one where somebody is only late.
//
// Fed with what every rank says is in flight (Waiting). Stuck: every rank still there is blocked, nothing in flight is
// held by all of them, and nothing has moved for `stuck_after`. Late: something has been in flight for `stall_warn`; it
// is a warning that names who has not submitted it, and an error after `stall_fail`.
// Pure: no clock, no I/O. Owned by Coordinator.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/control/messages.h"

namespace sirtaki::control {

struct StallOptions {
  Duration stuck_after = std::chrono::seconds(1);
  Duration stall_warn = std::chrono::seconds(60);
  Duration stall_fail = std::chrono::minutes(30);
};

class StallInspector {
 public:
  // An entry to end, on all ranks, with a status.
  struct Verdict {
    WaitEntry entry;
    Status status;
  };
  struct Findings {
    std::vector<Verdict> verdicts;
    std::vector<std::string> warnings;
    bool query = false;  // ask all ranks what they have in flight
  };

  StallInspector(int size, StallOptions options);

  void on_report(Rank from, Waiting report, TimePoint now);
  void on_gone(Rank rank);  // left or lost: no longer counted
  // The program of a joined rank is waited for by nobody, and waits for all; its steps of streams run by themselves.
  void set_joined(Rank rank, bool joined) { ranks_[static_cast<std::size_t>(rank)].joined = joined; }
  // What follows from the reports at time `now`. Call after reports and at next_tick().
  Findings inspect(TimePoint now);
  std::optional<TimePoint> next_tick() const;

 private:
  struct Held {
    WaitEntry entry;
    TimePoint since;
    TimePoint warn_at;
    bool asked = false;
  };
  struct RankState {
    bool gone = false;
    bool joined = false;
    Waiting report;
    std::vector<Held> held;
  };

  bool takes_part(Rank rank, const WaitEntry& entry) const;
  bool holds(Rank rank, const WaitEntry& entry) const;
  bool held_by_all(const WaitEntry& entry) const;
  bool looks_stuck() const;
  std::string describe_waits() const;
  std::string describe_late(const WaitEntry& entry, Duration age) const;
  void find_mismatches(Findings& findings) const;
  void find_stuck(TimePoint now, Findings& findings);
  void find_late(TimePoint now, Findings& findings);

  StallOptions options_;
  std::vector<RankState> ranks_;
  std::optional<TimePoint> stuck_since_;
  std::uint64_t stuck_progress_ = 0;
};

// "rank 1" or "ranks 0, 2, 3".
std::string ranks_to_string(const std::vector<Rank>& ranks);

}  // namespace sirtaki::control
