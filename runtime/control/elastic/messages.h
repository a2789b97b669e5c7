// Messages between a member of an elastic job and the roster of its hub, with their bounded wire form.
//
// RosterReport travels from member to hub, RosterNotice from hub to member, in order on the connection of the member,
// also in jobs with a tree of relays. docs/wire_format.md lists them. Plain values; pure.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/control/elastic/verdict.h"

namespace sirtaki::control {

// A process of the job. A slot is a place that the launcher fills; each start of a process there has a higher
// incarnation. A rank is a number within one epoch only.
struct MemberId {
  std::int32_t slot = -1;
  std::uint32_t incarnation = 0;
  auto operator<=>(const MemberId&) const = default;
};

// ---- member -> hub ----

// The first message on a connection.
struct Hello {
  MemberId id;
};

// Reports that the program of this process waits for the next epoch, and its positions in the last one. Nothing changes
// in its streams from now on until EpochFormed brings the verdict.
struct Regroup {
  Epoch last;  // the epoch that this process was in; 0: none
  // Number of the change for which all ranks have ended the epoch behind the same committed step; 0: the epoch ended
  // for another reason.
  std::uint32_t change = 0;
  bool has_state = false;  // this process has what a new process has to get
  bool admits = false;     // its program gives that to new processes when the next epoch has begun
  Status why;              // ended the session of this process; ok: its program has given the epoch up
  StreamReports streams;   // in `last`
  // Ranks of `last` with which no data connection came about in the whole time for that.
  std::vector<Rank> unreachable = {};
};

// Reports that this process leaves the epoch. `done`: the program has come to its end, and so has the job; else the
// others go on without this process.
struct Departure {
  bool done = false;
};

// Reports, in the middle of an epoch, that the program of this process has the state of the job and gives it to new
// processes at the beginning of an epoch; or that it does not any more.
struct Admission {
  bool admits = false;
};

// Reports, in the middle of an epoch, that this process has to leave the job soon. The others end the epoch for that
// behind a step that counts, and go on without it.
struct MustLeave {};

using RosterReport = std::variant<Hello, Regroup, Departure, Admission, MustLeave>;

// ---- hub -> member ----

struct LostRank {
  Rank rank = -1;  // in the epoch that ends
  Status cause;
};

// The epoch ends because of a lost rank: freeze, and answer with Regroup.
struct EpochEnds {
  Epoch epoch;
  LostRank lost;
};

// The epoch shall end behind a step that all members choose together, because others want to join or some have to
// leave. Members agree on the highest number they know.
struct ChangeWanted {
  std::uint32_t number = 0;
};

struct Seat {
  MemberId id;
  Rank old_rank = -1;  // rank in the epoch before; -1: new
  bool has_state = false;
};

// A new epoch. Survivors come first, in their old order. Decides which steps of the epoch before count, alike on all of
// them.
struct EpochFormed {
  Epoch epoch;
  std::uint32_t change = 0;  // this change and earlier ones are settled
  bool grows = false;        // processes may join the job later
  Rank rank = -1;            // rank of the receiver
  std::vector<Seat> seats;   // indexed by rank
  StreamVerdicts streams;    // the verdict over the epoch before
};

// No epoch follows, so nobody learns which steps of the last one count. A status that is ok is not sent: the code
// kShutdown says that the job has come to its end.
struct JobEnds {
  Status why;
};

// So many processes are on their way into the job or out of it, and have not asked for a change yet. Nothing depends on
// it but programs that wait for such a change.
struct Announced {
  std::uint32_t processes = 0;
};

using RosterNotice = std::variant<EpochEnds, ChangeWanted, EpochFormed, JobEnds, Announced>;

std::vector<std::byte> encode(const RosterReport& message);
std::vector<std::byte> encode(const RosterNotice& message);
Result<RosterReport> decode_roster_report(ConstBytes bytes);
Result<RosterNotice> decode_roster_notice(ConstBytes bytes);

}  // namespace sirtaki::control
