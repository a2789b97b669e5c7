// LaunchSequencer and LaunchMember: make ranks launch operations in one order, although each rank starts them in an
// order of its own.
//
// A rank reports each operation that is ready. An operation that is ready on all ranks of its set gets a place, the
// most urgent first, and these ranks launch it in the order of places. There is one sequence for all sets, of which
// each rank launches its part: of the operations that have not ended, the first one is the next one on all of its
// ranks, so none waits for ever. The making of the connections of a set has a place, too. An operation without a place
// can be withdrawn: if the sequencer confirms, no rank launches it; otherwise it gets its place, and all ranks launch
// it. Rank 0 has the sequencer, each rank has a member. They require only that messages between two ranks arrive in
// order. Pure values. Owners: LaunchServer and OrderedDevice.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/net/device/launch_set.h"
#include "runtime/net/link/tag_group.h"

namespace sirtaki::net {

// An operation that is ready on a rank.
struct LaunchItem {
  OpTag tag;
  std::int32_t priority = 0;  // a smaller one is more urgent
  LaunchSet set = kJobSet;    // equal on all ranks
  std::uint64_t bytes = 0;
};

// A decision of the sequencer.
struct LaunchNotice {
  enum class Kind : std::uint8_t { kPlaced, kWithdrawn, kConnect };
  Kind kind = Kind::kPlaced;
  OpTag tag;                // unused in kConnect
  LaunchSet set = kJobSet;  // its ranks must know
  Rank to = -1;             // in kWithdrawn: only this rank must know
  std::uint64_t bytes = 0;  // in kPlaced: the largest size that a rank has reported

  friend bool operator==(const LaunchNotice&, const LaunchNotice&) = default;
};

class LaunchSequencer {
 public:
  explicit LaunchSequencer(int ranks);

  // Returns the number of the process set of these ranks, which are ascending; a new one if there is none yet.
  LaunchSet add(const std::vector<Rank>& ranks);
  // Returns whether the set exists, and `rank` belongs to it.
  bool contains(LaunchSet set, Rank rank) const;
  // Returns the ranks of a set that exists.
  const std::vector<Rank>& ranks_of(LaunchSet set) const { return sets_[set].ranks; }
  // Returns a rank without which the set can do nothing any more.
  std::optional<Rank> lost_of(LaunchSet set) const { return sets_[set].lost; }

  // Records that the operation is ready on `rank`; the most urgent priority of all ranks counts. kBug if `rank` has
  // reported it before, does not belong to the set, or other ranks have reported it with another set. Without effect if
  // the set has lost a rank.
  Status ready(Rank rank, const LaunchItem& item);
  // Withdraws the operation for `rank`; without effect if it has a place already.
  void withdraw(Rank rank, OpTag tag);
  // Gives the making of the connections of a set the next place.
  void connect(LaunchSet set) { connecting_.push_back(set); }
  // Gives no more places to sets of `rank`, which is gone. Returns those that had lost none before.
  std::vector<LaunchSet> lose(Rank rank);
  // Returns the decisions since the last call, in order.
  std::vector<LaunchNotice> take();
  // Returns the number of operations without a place.
  std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Set {
    std::vector<Rank> ranks;
    std::optional<Rank> lost = {};
  };
  struct Waiting {
    std::vector<bool> ready;  // indexed by rank
    std::size_t count = 0;
    LaunchItem item;
    std::uint64_t completed = 0;  // sequence number of the last report
  };

  bool complete(const Waiting& waiting) const { return waiting.count == ranks_of(waiting.item.set).size(); }

  int ranks_;
  std::vector<Set> sets_;  // indexed by LaunchSet
  std::map<std::vector<Rank>, LaunchSet> numbers_;
  std::set<Rank> gone_;
  std::map<OpTag, Waiting> waiting_;
  std::vector<OpTag> complete_;  // operations that are, or were, ready on all ranks
  std::vector<LaunchNotice> withdrawn_;
  std::vector<LaunchSet> connecting_;
  std::uint64_t clock_ = 0;
};

class LaunchMember {
 public:
  // Records an operation that is ready here and must be reported. Returns false if it has been, and has no place yet.
  bool start(OpTag tag) { return waiting_.emplace(tag, false).second; }
  // Returns the operations of `tags` whose withdrawal must be reported.
  std::vector<OpTag> withdraw(const TagGroup& tags);
  // Apply decisions of the sequencer; false if a decision contradicts the state.
  bool placed(OpTag tag) { return waiting_.erase(tag) == 1; }
  bool withdrawn(OpTag tag);

 private:
  std::map<OpTag, bool> waiting_;  // operations without a place; true: withdrawal is reported
};

}  // namespace sirtaki::net
