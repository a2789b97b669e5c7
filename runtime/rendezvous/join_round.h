// JoinRound: the ranks that wait for the next epoch, and checks that they fit together. Pure. Owned by: Server.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::rendezvous {

// Returns "rank 3" or "ranks 0, 2-5, 9"; after a dozen pieces the rest becomes "and 37 more".
std::string ranks_text(const std::vector<Rank>& ranks);
// Returns "rank 3 (host node-b, process 4711)".
std::string rank_text(Rank rank, const std::string& hostname, std::int64_t pid);

class JoinRound {
 public:
  // `grows`: processes may have been started for fewer ranks.
  explicit JoinRound(int size, bool grows = false) : size_(size), grows_(grows) {}

  // Checks one request. kMismatch: its size is wrong, or its rank is out of range or already waiting.
  Status check(const JoinRequest& request) const;
  // Adds a request that check() has accepted.
  void add(JoinRequest request);
  void remove(Rank rank) { requests_.erase(rank); }
  void clear() { requests_.clear(); }

  bool is_empty() const { return requests_.empty(); }
  bool is_full() const { return static_cast<int>(requests_.size()) == size_; }
  std::vector<Rank> absent() const;
  // Compares versions and agreed options of the waiting ranks. kMismatch names the option, the ranks and the values.
  Status agreement() const;
  // Compares a request with those that wait, which agree. kMismatch as in agreement().
  Status agrees(const JoinRequest& request) const;
  // Returns the membership of the waiting ranks, sorted by rank.
  Membership form(Epoch epoch) const;
  // Returns the membership of some of the waiting ranks, which get the ranks 0, 1, ... in this order.
  Membership form(Epoch epoch, const std::vector<Rank>& chosen) const;

 private:
  int size_;
  bool grows_;
  std::map<Rank, JoinRequest> requests_;
};

}  // namespace sirtaki::rendezvous
