// StallInspector: tells a job that is provably stuck from one where somebody is only late.
//
// Fed with what every rank says is in flight (Waiting). Stuck: every rank still there is blocked, nothing in flight is
// held by all of them, and nothing has moved for `stuck_after`. Late: something has been in flight for `stall_warn`; it
// is a warning that names who has not submitted it, and an error after `stall_fail`.
// Pure: no clock, no I/O. Owned by Coordinator.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/control/messages.h"
#include "runtime/control/rank_set.h"

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
    RankSet give_way;    // the job is stuck unless these go on without waiting
  };

  StallInspector(int size, StallOptions options);

  // Neither on_report() nor inspect() counts time for which this process stood still: ranks did, too.
  // All of `from` report the same.
  void on_report(const RankSet& from, Waiting report, TimePoint now);
  void on_gone(Rank rank);  // left or lost: no longer counted
  // The program of a joined rank is waited for by nobody, and waits for all; its steps of streams and its part
  // in operations by name run by themselves.
  void set_joined(const RankSet& ranks, bool joined);
  // What follows from the reports at time `now`. Call after reports and at next_tick().
  Findings inspect(TimePoint now);
  std::optional<TimePoint> next_tick() const;

 private:
  struct Key {
    WaitKind kind = WaitKind::kOp;
    std::string name;
    std::uint64_t use = 0;
    bool operator==(const Key&) const = default;
    bool operator<(const Key& other) const {
      return std::tie(kind, name, use) < std::tie(other.kind, other.name, other.use);
    }
  };
  struct Variant {
    WaitEntry entry;
    RankSet ranks;
  };
  // What at least one rank has in flight.
  struct InFlight {
    std::vector<Variant> variants;  // more than one: the ranks mean different operations
    RankSet ranks;                  // of all variants
    TimePoint since;                // the first of them
    TimePoint warn_at;
    bool asked = false;
  };
  using Report = std::shared_ptr<const Waiting>;
  struct RankState {
    bool gone = false;
    Report report;  // null: none
  };

  static Key key_of(const WaitEntry& entry) { return {entry.kind, entry.name, entry.use}; }
  void add(const WaitEntry& entry, const RankSet& ranks, TimePoint now);
  void release(const WaitEntry& entry, const RankSet& ranks);
  void skip_standstill(TimePoint now);
  RankSet participants(const InFlight& in_flight) const;
  bool looks_stuck() const;
  std::uint64_t progress() const;
  std::string describe_waits() const;
  std::string describe_late(const InFlight& in_flight, Duration age) const;
  void find_mismatches(Findings& findings) const;
  void find_stuck(TimePoint now, Findings& findings);
  void find_late(TimePoint now, Findings& findings);

  StallOptions options_;
  std::vector<RankState> ranks_;
  RankSet alive_;
  RankSet joined_;
  std::map<Key, InFlight> in_flight_;
  std::optional<TimePoint> stuck_since_;
  std::uint64_t stuck_progress_ = 0;
};

}  // namespace sirtaki::control
