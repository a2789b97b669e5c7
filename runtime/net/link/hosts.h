// Hosts: which ranks share a machine, and how the data of a reduction is shared out among them.
// Plain value, the same on all ranks; made from a membership.
// HostGroups: the ranks that then work together, as collectives; of one rank, and owned by its backend.
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
  // Several, and ranks of one among them that share a way out.
  bool several_with_several() const { return count() > 1 && shares() > 1; }
  int host_of(Rank rank) const;

  // Data is cut into as many shares as the fullest host has ranks. On each host every share belongs to one rank, which
  // exchanges it with its owners on the others; a rank's shares are neighbours.
  int shares() const { return shares_; }
  int owner_place(int host, int share) const;
  // Who exchanges a share: one rank of each host, by host.
  std::vector<Rank> owners(int share) const;

 private:
  std::vector<std::vector<Rank>> ranks_;
  int shares_ = 0;
};

class Collectives;

struct HostGroups {
  // A share that this rank exchanges with its owners on other hosts; these in the order of hosts.
  struct Share {
    int number = 0;
    Collectives* owners = nullptr;
  };

  Hosts hosts;
  int host = 0;                 // of this rank
  Collectives* here = nullptr;  // the ranks of this host, in ascending order
  std::vector<Share> own;       // at least one; numbers are neighbours
};

}  // namespace sirtaki::net
