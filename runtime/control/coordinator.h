// Coordinator: the job's half of every agreement: first use of names, streams, aborted steps, joins, stalls.
//
// Lives in the Hub, on its control thread (in the simulator: on the simulated loop). Pure state machine: events in, a
// list of actions out; the owner sends them in order, so all members see the same order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/control/messages.h"
#include "runtime/control/stall.h"

namespace sirtaki::control {

class Coordinator {
 public:
  static constexpr Rank kAll = -1;
  struct Send {
    Rank to = kAll;
    CoordinatorMessage message;
  };
  struct Actions {
    std::vector<Send> sends;
    std::vector<std::string> warnings;
  };

  Coordinator(int size, StallOptions options);

  // TraceChunk and TraceRequest are the owner's business and not accepted here.
  void on_message(Rank from, const MemberMessage& message, TimePoint now);
  void on_left(Rank rank);
  void on_lost(Rank rank);
  void on_tick(TimePoint now);
  std::optional<TimePoint> next_tick() const { return stall_.next_tick(); }

  Actions take_actions();

 private:
  struct Use {
    std::vector<std::optional<OpMeta>> metas;
    std::vector<bool> recalled;
  };
  struct Name {
    std::uint32_t id = 0;
    std::map<std::uint64_t, Use> uses;
    std::set<std::uint64_t> cancelled;  // the last of them: what is still said of these is old
  };
  struct Opening {
    std::vector<std::optional<StreamOpen>> specs;
  };
  // Has no more data; takes part in steps of streams, and in no operation by name it has not submitted.
  struct JoinedRank {
    std::unordered_map<std::string, std::uint64_t> uses;  // submitted, of each name
    std::map<std::uint16_t, StreamPlace> places;
  };
  struct Stream {
    std::string name;
    std::uint32_t attempt = 0;
    bool flags = false;
    std::set<Rank> closed;
  };

  void on(Rank from, const Announce& message);
  void on(Rank from, const OpFailed& message);
  void on(Rank from, const StreamOpen& message);
  void on(Rank from, const StreamAbort& message);
  void on(Rank from, const StreamUnused& message);
  void on(Rank from, const StreamClose& message);
  void on(Rank from, const Leaving& message);
  void on(Rank from, const Joined& message);

  void send(Rank to, CoordinatorMessage message);
  void settle(const std::string& name, std::uint64_t use);
  void count_left(const std::string& name, std::uint64_t use);
  void recall_missing(const std::string& name);
  void cancel(const std::string& name, std::uint64_t use, const Status& status, bool everywhere);
  void abort_stream(const StreamAbort& cause, bool everywhere);
  void settle_opening(const std::string& name);
  void count_joined(const std::string& name, std::uint64_t use);
  void count_joined_step(const WaitEntry& entry);
  void refuse_opening_of_joined(const std::string& name);
  void end_join(Rank last);
  void apply(const StallInspector::Findings& findings);

  int size_;
  StallInspector stall_;
  std::optional<Rank> first_left_;
  std::map<Rank, std::unordered_map<std::string, std::uint64_t>> left_uses_;  // by rank that left, of each name
  std::map<Rank, JoinedRank> joined_;                                         // while some have and some have not
  std::unordered_map<std::string, Name> names_;
  std::uint32_t next_id_ = 1;
  std::map<std::string, Opening> openings_;
  std::map<std::uint16_t, Stream> streams_;
  std::uint16_t next_stream_ = 1;
  Actions actions_;
};

}  // namespace sirtaki::control
