// StallInspector: distinguishes a job that is provably stuck from one with a late rank.
//
// Its input is the operations in flight on every rank (Waiting).
//   - Stuck: every remaining rank is blocked, no operation is in flight on all of them, and nothing has changed for
//     `stuck_after`.
//   - Late: an operation has been in flight for `stall_warn`. This causes a warning with the ranks that have not
//     submitted it, and an error after `stall_fail`.
// Pure: no clock, no I/O. Coordinator owns it.
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
  // An entry that has to end on all ranks with a status.
  struct Verdict {
    WaitEntry entry;
    Status status;
  };
  struct Findings {
    std::vector<Verdict> verdicts;
    std::vector<std::string> warnings;
    bool query = false;  // request Waiting from all ranks
    RankSet give_way;    // the job is stuck unless these ranks continue without waiting
  };

  StallInspector(int size, StallOptions options);

  // on_report() and inspect() ignore time in which this process did not run, because ranks may have been stopped, too.
  // Records a report that all of `from` sent.
  void on_report(const RankSet& from, Waiting report, TimePoint now);
  // Removes a rank that has left or is lost.
  void on_gone(Rank rank);
  // Marks ranks as joined. No rank waits for the program of a joined rank, and that program waits for all; its part in
  // streams and operations by name runs without it.
  void set_joined(const RankSet& ranks, bool joined);
  // Returns the findings at time `now`. Call after reports and at next_tick().
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
  // An operation in flight on at least one rank.
  struct InFlight {
    std::vector<Variant> variants;  // more than one: ranks mean different operations
    RankSet ranks;                  // ranks of all variants
    TimePoint since;                // time of the first report
    TimePoint warn_at;
    bool asked = false;
  };
  using Report = std::shared_ptr<const Waiting>;
  struct RankState {
    bool gone = false;
    Report report;  // null: no report
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
