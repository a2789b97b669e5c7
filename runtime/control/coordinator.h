// Coordinator: the side of the job in every agreement: first use of names, streams, aborted steps, joins, stalls.
//
// Pure state machine: events in, a list of actions out. CoordinatorServer owns it, calls it on its control thread (in
// the simulator: on the simulated loop), and sends the actions in order, so all members see the same order.
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
  // While a rank has joined, all operations except allreduce and barrier are refused, as in Horovod.
  bool joined_only_reduce = false;
  // Limit of remembered names. Above it all ranks forget names that are no longer used.
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

  // A `last_word_wait` above zero means that messages travel over a tree of relays. A rank has then left when its
  // Leaving message arrives, while on_left() may be called before or long after. If Leaving does not arrive within that
  // time after on_left(), it never will. The others learn of the leave by a message (RanksLeft), behind all earlier
  // agreements.
  Coordinator(int size, StallOptions options, Duration last_word_wait = {}, CoordinatorOptions more = {});

  // Handles a message that all of `from` sent; messages of one rank arrive in its order. TraceChunk, TraceRequest and
  // JobBroken belong to the owner and are ignored here.
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
    RankSet members;  // participants
    std::uint32_t id = 0;
    std::map<std::uint64_t, Use> uses;
    std::set<std::uint64_t> cancelled;  // the last cancelled uses; later messages about them are outdated
  };
  struct Opening {
    RankSet members;  // participants
    std::vector<Group<StreamOpen>> specs;
    RankSet opened;
  };
  // A rank without more data. It contributes zeros in steps of streams and in operations by name that it has not
  // submitted.
  struct JoinedRank {
    std::unordered_map<std::string, std::uint64_t> uses;  // uses submitted, or done with zeros, of each name
    std::map<std::uint16_t, StreamPlace> places;
  };
  // Candidates for forgetting, until all ranks have answered whether they use them.
  struct Asked {
    // Uses of each name, equal on all ranks that have answered.
    std::map<std::string, std::optional<std::uint64_t>> counts;
    std::set<std::string> kept;
    RankSet missing;  // ranks without an answer
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
  using Uses = std::unordered_map<std::string, std::uint64_t>;  // completed uses, by name
  std::map<Rank, Uses> last_words_;                             // Leaving messages of ranks that are about to leave
  std::map<Rank, Uses> left_uses_;
  std::vector<Rank> left_;        // in the order of leaving
  std::vector<Rank> unnotified_;  // left, but the others do not know it until notify_left_at_; with a tree only
  std::optional<TimePoint> notify_left_at_;
  std::map<Rank, TimePoint> awaiting_last_word_;  // deadline of the Leaving message of ranks that have gone
  std::map<Rank, JoinedRank> joined_;             // not empty while some ranks have joined and others have not
  std::unordered_map<std::string, Name> names_;
  std::deque<std::string> oldest_;  // all names except those in asked_; the first ones are asked for next
  std::optional<Asked> asked_;
  std::uint32_t next_id_ = 1;
  std::map<std::string, Opening> openings_;
  std::map<std::uint16_t, Stream> streams_;
  std::uint16_t next_stream_ = 1;
  Actions actions_;
};

}  // namespace sirtaki::control
