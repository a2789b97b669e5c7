// LaunchAgreement: the part of rank 0 in the agreement of the ranks of a process set on device collectives.
//
// Each rank names the ranks of the set and says whether it is able to take part. If all are, the making of their
// connections gets a place in the order of launches, each rank reports its result, and all learn that the set is open.
// If a rank is not able, has another version than the one that asked first, or cannot connect, all learn its number.
// Pure value. Owner: LaunchServer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/net/device/launch_messages.h"
#include "runtime/net/device/launch_order.h"

namespace sirtaki::net {

class LaunchAgreement {
 public:
  using Answers = std::vector<std::pair<Rank, LaunchWord>>;

  // `size` is that of the job.
  explicit LaunchAgreement(int size) : size_(size) {}

  // Takes kRanks, kAble and kConnected. Adds new sets to `order`, and the making of connections. kCorrupt if `from`
  // breaks the protocol.
  Status take(Rank from, const LaunchWord& word, LaunchSequencer& order);
  // Returns the answers since the last call, in order.
  Answers take_answers() { return std::exchange(answers_, {}); }
  // Returns the word by which a rank learns that the connections of a set are to be made.
  LaunchWord connect_word(LaunchSet set, Rank to) const;

 private:
  enum class Phase : std::uint8_t { kAsking, kConnecting, kOpen, kRefused };
  struct Member {
    LaunchSet own = 0;  // its number of the set
    int version = 0;
    std::optional<bool> connected = {};
  };
  struct Agreement {
    Phase phase = Phase::kAsking;
    int version = 0;                 // version of the rank that asked first
    std::map<Rank, Member> members;  // that have asked
    Rank refused_by = -1;
  };
  // Words of a rank about the ranks of a set.
  struct Named {
    LaunchSet own = 0;
    std::vector<Rank> ranks;
  };

  Status name_ranks(Rank from, const LaunchWord& word);
  Status able(Rank from, const LaunchWord& word, LaunchSequencer& order);
  Status connected(Rank from, const LaunchWord& word, const LaunchSequencer& order);
  static bool connects(const Agreement& agreement);
  void refuse(LaunchSet set, Agreement& agreement, Rank by);
  void refuse(LaunchSet set, const Agreement& agreement, Rank by, Rank to);

  const int size_;
  std::map<Rank, Named> named_;  // sets that are being named
  std::map<LaunchSet, Agreement> agreements_;
  Answers answers_;
};

}  // namespace sirtaki::net
