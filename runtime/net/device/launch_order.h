// LaunchSequencer and LaunchMember: one order of launches for all ranks, though each starts operations in an order of
// its own.
//
// A rank says of each operation that it is ready. What all ranks are ready for gets a place, the most urgent first, and
// every rank launches in the order of the places. What has no place yet can be withdrawn: where the sequencer says so,
// nobody launches it; else it gets its place, and is launched by all.
// The sequencer is rank 0's, each rank has a member. Messages from one to the other arrive in the order in which they
// were sent; more is not asked of them. Pure values; owned by OrderedDevice.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/net/link/tag_group.h"

namespace sirtaki::net {

// What the sequencer tells.
struct LaunchNotice {
  static constexpr Rank kAll = -1;

  enum class Kind : std::uint8_t { kPlaced, kWithdrawn };
  Kind kind = Kind::kPlaced;
  Rank to = kAll;  // one rank where it is withdrawn
  OpTag tag;
  std::int32_t priority = 0;  // of what is placed: the most urgent that a rank has given it

  friend bool operator==(const LaunchNotice&, const LaunchNotice&) = default;
};

class LaunchSequencer {
 public:
  explicit LaunchSequencer(int ranks) : ranks_(ranks) {}

  // Smaller is more urgent. kBug: the rank has said so before.
  Status ready(Rank rank, OpTag tag, std::int32_t priority);
  // No answer where it has its place already.
  void withdraw(Rank rank, OpTag tag);
  // What is to be told since the last time, in this order.
  std::vector<LaunchNotice> take();
  // Operations without a place.
  std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    std::vector<bool> ready;  // by rank
    int count = 0;
    std::int32_t priority = 0;
    std::uint64_t completed = 0;  // when all were: a number that grows
  };

  const int ranks_;
  std::map<OpTag, Waiting> waiting_;
  std::vector<OpTag> complete_;  // all are ready, or were
  std::vector<LaunchNotice> withdrawn_;
  std::uint64_t clock_ = 0;
};

class LaunchMember {
 public:
  // The rank is ready for it, which is to be said. False: it has been said, and there is no place yet.
  bool start(OpTag tag) { return waiting_.emplace(tag, false).second; }
  // Those of `tags` that are to be withdrawn, which is to be said of each.
  std::vector<OpTag> withdraw(const TagGroup& tags);
  // The sequencer's words; false where they make no sense.
  bool placed(OpTag tag) { return waiting_.erase(tag) == 1; }
  bool withdrawn(OpTag tag);

 private:
  std::map<OpTag, bool> waiting_;  // without a place -> whether it was to be withdrawn
};

}  // namespace sirtaki::net
