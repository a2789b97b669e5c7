// Who takes part in an epoch: what a rank says of itself when it joins, and what everybody learns of everybody.
// Plain data with its wire form; shared by Server, Client and the launcher.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::rendezvous {

inline constexpr std::size_t kMaxRanks = 65536;  // of a job, as far as records from the wire are believed

struct JoinRequest {
  Rank rank = -1;
  int size = 0;
  int fanout = 0;  // of the tree of relays; below 2: none
  std::string hostname;
  std::string host_id;  // ranks with the same id share memory (boot id + network namespace + /dev/shm)
  std::int64_t pid = 0;
  std::vector<std::string> data_endpoints;   // "10.0.0.3:41213" or "[fd00::3]:41213", best first
  std::vector<std::string> relay_endpoints;  // the same of the port for branches; empty: this rank relays for nobody
  std::string version;                       // library version and build id; must be equal on all ranks
  std::vector<std::pair<std::string, std::string>> agreed_options;  // name -> value; must be equal on all ranks
};

struct Member {
  Rank rank = -1;
  std::string hostname;
  std::string host_id;
  std::int64_t pid = 0;
  std::vector<std::string> data_endpoints;
  std::vector<std::string> relay_endpoints;
};

struct Membership {
  Epoch epoch;
  int fanout = 0;
  std::vector<Member> members;  // by rank

  int size() const { return static_cast<int>(members.size()); }
  // Ranks by host (the same host id), ascending in each; hosts in order of their lowest rank.
  std::vector<std::vector<Rank>> hosts() const;
  int host_count() const { return static_cast<int>(hosts().size()); }
  // The place of `rank`'s host, and the ranks there.
  int host_index(Rank rank) const;
  std::vector<Rank> local_ranks(Rank rank) const;
};

std::vector<std::byte> encode(const JoinRequest& request);
Result<JoinRequest> decode_join_request(ConstBytes bytes);
std::vector<std::byte> encode(const Membership& membership);
Result<Membership> decode_membership(ConstBytes bytes);

}  // namespace sirtaki::rendezvous
