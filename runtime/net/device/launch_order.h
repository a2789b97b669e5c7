// LaunchSequencer and LaunchMember: make all ranks launch operations in one order, although each rank starts them in an
// order of its own.
//
// A rank reports each operation that is ready. An operation that is ready on all ranks gets a place, the most urgent
// first, and every rank launches in the order of places. An operation without a place can be withdrawn: if the
// sequencer confirms, no rank launches it; otherwise it gets its place, and all ranks launch it.
// Rank 0 has the sequencer, each rank has a member. They require only that messages between two ranks arrive in order.
// Pure values. Owners: LaunchServer and OrderedDevice.
#pragma once

#include <cstdint>
#include <map>
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
  static constexpr Rank kAll = -1;

  enum class Kind : std::uint8_t { kPlaced, kWithdrawn };
  Kind kind = Kind::kPlaced;
  Rank to = kAll;  // a single rank for kWithdrawn
  OpTag tag;
  // In kPlaced only; `bytes` is the largest size that a rank has reported.
  LaunchSet set = kJobSet;
  std::uint64_t bytes = 0;

  friend bool operator==(const LaunchNotice&, const LaunchNotice&) = default;
};

class LaunchSequencer {
 public:
  explicit LaunchSequencer(int ranks) : ranks_(ranks) {}

  // Records that the operation is ready on `rank`; the most urgent priority of all ranks counts. kBug if `rank` has
  // reported it before, or other ranks have reported it with another set.
  Status ready(Rank rank, const LaunchItem& item);
  // Withdraws the operation for `rank`; without effect if it has a place already.
  void withdraw(Rank rank, OpTag tag);
  // Returns the decisions since the last call, in order.
  std::vector<LaunchNotice> take();
  // Returns the number of operations without a place.
  std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    std::vector<bool> ready;  // indexed by rank
    int count = 0;
    LaunchItem item;
    std::uint64_t completed = 0;  // sequence number of the last report
  };

  const int ranks_;
  std::map<OpTag, Waiting> waiting_;
  std::vector<OpTag> complete_;  // operations that are, or were, ready on all ranks
  std::vector<LaunchNotice> withdrawn_;
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
