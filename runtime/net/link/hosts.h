// Hosts: the partition of ranks into machines, and the assignment of shares of a reduction to the ranks of each.
// Plain value, equal on all ranks; made from a membership.
// HostGroups: the collectives among the ranks of this host and among the owners of each share. Owned by the backend.
#pragma once

#include <vector>

#include "runtime/base/types.h"

namespace sirtaki::net {

class Hosts {
 public:
  Hosts() = default;
  // Ranks by host, in ascending order each; hosts in order of their lowest rank.
  explicit Hosts(std::vector<std::vector<Rank>> ranks);

  const std::vector<std::vector<Rank>>& ranks() const { return ranks_; }
  int count() const { return static_cast<int>(ranks_.size()); }
  // Returns whether there are several hosts, at least one with several ranks behind one uplink.
  bool several_with_several() const { return count() > 1 && shares() > 1; }
  int host_of(Rank rank) const;

  // The number of shares is the number of ranks of the fullest host. On each host, every share belongs to one rank,
  // which exchanges it with the owners on other hosts. The shares of a rank are consecutive.
  int shares() const { return shares_; }
  int owner_place(int host, int share) const;
  // Returns the ranks that exchange a share: one rank per host, in the order of hosts.
  std::vector<Rank> owners(int share) const;

 private:
  std::vector<std::vector<Rank>> ranks_;
  int shares_ = 0;
};

class Collectives;

struct HostGroups {
  // A share that this rank exchanges with the owners on other hosts, which are in the order of hosts.
  struct Share {
    int number = 0;
    Collectives* owners = nullptr;
  };

  Hosts hosts;
  int host = 0;                 // the host of this rank
  Collectives* here = nullptr;  // the ranks of this host, in ascending order
  std::vector<Share> own;       // at least one; numbers are consecutive
};

}  // namespace sirtaki::net
