// JoinRound: the ranks that wait for the next epoch, and what is wrong with them. Pure; owned by Server.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/rendezvous/link/membership.h"

namespace sirtaki::rendezvous {

// "rank 3", "ranks 0, 2-5, 9"; cut after a dozen pieces with "and 37 more".
std::string ranks_text(const std::vector<Rank>& ranks);
// "rank 3 (host node-b, process 4711)".
std::string rank_text(Rank rank, const std::string& hostname, std::int64_t pid);

class JoinRound {
 public:
  explicit JoinRound(int size) : size_(size) {}

  // What can be said of one request alone: kMismatch for a wrong size, a rank out of range or one that is already here.
  Status check(const JoinRequest& request) const;
  void add(JoinRequest request);  // check() was ok
  void remove(Rank rank) { requests_.erase(rank); }
  void clear() { requests_.clear(); }

  bool is_empty() const { return requests_.empty(); }
  bool is_full() const { return static_cast<int>(requests_.size()) == size_; }
  std::vector<Rank> absent() const;
  // kMismatch when versions or agreed options of those present differ; names the option, ranks and values.
  Status agreement() const;
  // Those present, by rank.
  Membership form(Epoch epoch) const;

 private:
  int size_;
  std::map<Rank, JoinRequest> requests_;
};

}  // namespace sirtaki::rendezvous
