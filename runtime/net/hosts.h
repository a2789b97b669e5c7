// Hosts: which ranks share a machine, and how the data of an allreduce is shared out among them.
// Plain value, the same on all ranks; made from a membership.
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

  // Bytes that leave the busiest host when every rank sends to every other one, L (P - L) / P of them from L of P
  // ranks, over those of an allreduce host by host, (H - 1) / H; both twice. For several hosts.
  int crossings_permille() const;

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

}  // namespace sirtaki::net
