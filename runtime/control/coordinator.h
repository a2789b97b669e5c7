// Coordinator: the job's half of every agreement: first use of names, streams, aborted steps, joins, stalls.
//
// Lives in the CoordinatorServer, on its control thread (in the simulator: on the simulated loop). Pure state machine:
// events in, a list of actions out; the owner sends them in order, so all members see the same order.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/control/messages.h"
#include "runtime/control/mismatch.h"
#include "runtime/control/rank_set.h"
#include "runtime/control/stall.h"

namespace sirtaki::control {

struct CoordinatorOptions {
  // While a rank has joined, what is no allreduce or barrier is refused, as Horovod does.
  bool joined_only_reduce = false;
  // Names of operations beyond so many are forgotten on all ranks when they are in use no more.
  std::size_t names = 1024;
};

class Coordinator {
 public:
  struct Send {
    RankSet to;
    CoordinatorMessage message;
  };
  struct Actions {
    std::vector<Send> sends;
    std::vector<std::string> warnings;
  };

  // `last_word_wait` above zero: messages come over a tree of relays, so a rank has left when its last word says so:
  // on_left() may come before it or long after. When it does not come for so long after on_left(), it never will. The
  // others are told of it by a message (RanksLeft), behind everything that was agreed before.
  Coordinator(int size, StallOptions options, Duration last_word_wait = {}, CoordinatorOptions more = {});

  // What all of `from` say, in the order each of them said it. TraceChunk, TraceRequest and JobBroken are the owner's
  // business and ignored here.
  void on_received(const RankSet& from, const MemberMessage& message, TimePoint now);
  void on_message(Rank from, const MemberMessage& message, TimePoint now) {
    on_received(RankSet::of(from), message, now);
  }
  void on_left(Rank rank, TimePoint now);
  void on_lost(Rank rank);
  void on_tick(TimePoint now);
  std::optional<TimePoint> next_tick() const;

  Actions take_actions();
  std::size_t names() const { return names_.size(); }

 private:
  struct Use {
    std::vector<Group<OpMeta>> metas;
    RankSet announced;
    RankSet recalled;
  };
  struct Name {
    RankSet members;  // take part
    std::uint32_t id = 0;
    std::map<std::uint64_t, Use> uses;
    std::set<std::uint64_t> cancelled;  // the last of them: what is still said of these is old
  };
  struct Opening {
    RankSet members;  // take part
    std::vector<Group<StreamOpen>> specs;
    RankSet opened;
  };
  // Has no more data; stands in, in steps of streams and in operations by name that it has not submitted.
  struct JoinedRank {
    std::unordered_map<std::string, std::uint64_t> uses;  // submitted or stood in for, of each name
    std::map<std::uint16_t, StreamPlace> places;
  };
  // Names that might be forgotten, while not all ranks have said whether they use them.
  struct Asked {
    std::map<std::string, std::optional<std::uint64_t>> counts;  // of each name: its uses, the same on all ranks so far
    std::set<std::string> kept;
    RankSet missing;  // have not answered
  };
  struct Stream {
    std::string name;
    RankSet members;
    std::uint32_t attempt = 0;
    bool flags = false;
    RankSet closed;
  };

  void on(const RankSet& from, const Announce& message);
  void on(const RankSet& from, const OpFailed& message);
  void on(const RankSet& from, const StreamOpen& message);
  void on(const RankSet& from, const StreamAbort& message);
  void on(const RankSet& from, const StreamUnused& message);
  void on(const RankSet& from, const StreamClose& message);
  void on(const RankSet& from, const Joined& message);
  void on(const RankSet& from, const Unused& message);

  void send(RankSet to, CoordinatorMessage message);
  void send_all(CoordinatorMessage message) { send(all_, std::move(message)); }
  bool relayed() const { return last_word_wait_ > Duration(0); }
  static Status left_status(Rank rank, const std::string& what);
  void on_last_word(const RankSet& from, const Leaving& message, TimePoint now);
  void finish_left(Rank rank, TimePoint now);
  void give_up_last_words(TimePoint now);
  void notify_left(TimePoint now);
  Name& record_of(const std::string& name);
  void decide(const std::string& name, std::uint64_t use);
  void count_left(const std::string& name, std::uint64_t use);
  void recall_missing(const std::string& name);
  void cancel(const std::string& name, std::uint64_t use, const Status& status, bool everywhere);
  void abort_stream(const StreamAbort& cause, bool everywhere);
  void decide_opening(const std::string& name);
  void refuse_opening(const std::string& name, Status status);
  std::optional<Rank> left_of(const RankSet& members) const;
  RankSet absent_joined(const std::string& name, const Name& record, std::uint64_t use) const;
  Status refusal_of(const std::string& name, const OpMeta& meta, const RankSet& absent) const;
  void align_uses();
  void count_joined_step(const WaitEntry& entry);
  void refuse_opening_of_joined(const std::string& name);
  void end_join(Rank last);
  RankSet joined_ranks() const;
  void ask_unused();
  void record_unused(Rank rank, const std::unordered_map<std::string, std::uint64_t>& uses);
  void forget_unused();
  void send_names(const std::vector<std::string>& names, const std::vector<std::string>& kept, bool asks);
  void apply(const StallInspector::Findings& findings);

  const RankSet all_;
  const Duration last_word_wait_;
  const CoordinatorOptions options_;
  StallInspector stall_;
  using Uses = std::unordered_map<std::string, std::uint64_t>;  // seen through, by name
  std::map<Rank, Uses> last_words_;                             // of ranks that are about to leave
  std::map<Rank, Uses> left_uses_;
  std::vector<Rank> left_;        // in the order in which they did
  std::vector<Rank> unnotified_;  // have left, and the others are told so at tell_left_at_; with a tree only
  std::optional<TimePoint> notify_left_at_;
  std::map<Rank, TimePoint> awaiting_last_word_;  // gone, and the last word is still to come: until then
  std::map<Rank, JoinedRank> joined_;             // while some have and some have not
  std::unordered_map<std::string, Name> names_;
  std::deque<std::string> oldest_;  // names, but those asked for: the first are asked for next
  std::optional<Asked> asked_;
  std::uint32_t next_id_ = 1;
  std::map<std::string, Opening> openings_;
  std::map<std::uint16_t, Stream> streams_;
  std::uint16_t next_stream_ = 1;
  Actions actions_;
};

}  // namespace sirtaki::control
