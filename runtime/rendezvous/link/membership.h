// Membership: the members of an epoch, which every rank receives, and the request of a rank to join. Plain data with
// its wire form; shared by Server, Client and the launcher.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::rendezvous {

inline constexpr std::size_t kMaxRanks = 65536;  // larger records from the wire are refused

struct JoinRequest {
  Rank rank = -1;
  int size = 0;
  int fanout = 0;  // children of a relay; below 2: no relay tree
  std::string hostname;
  std::string host_id;  // ranks with the same id share memory (boot id + network namespace + /dev/shm)
  std::int64_t pid = 0;
  std::vector<std::string> data_endpoints;   // "10.0.0.3:41213" or "[fd00::3]:41213", best first
  std::vector<std::string> relay_endpoints;  // endpoints for branches; empty: this rank is no relay
  std::string version;                       // library version and build id; must be equal on all ranks
  std::vector<std::pair<std::string, std::string>> agreed_options;  // name -> value; must be equal on all ranks
  std::vector<std::byte> report;  // for the handler of the server of an elastic job, about the epoch before
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
  std::vector<Member> members;  // indexed by rank

  int size() const { return static_cast<int>(members.size()); }
  // Returns the ranks of each host (equal host id) in ascending order; hosts in order of their lowest rank.
  std::vector<std::vector<Rank>> hosts() const;
  int host_count() const { return static_cast<int>(hosts().size()); }
  // Return the index in hosts() of the host of `rank`, and the ranks of that host.
  int host_index(Rank rank) const;
  std::vector<Rank> local_ranks(Rank rank) const;
};

std::vector<std::byte> encode(const JoinRequest& request);
Result<JoinRequest> decode_join_request(ConstBytes bytes);
std::vector<std::byte> encode(const Membership& membership);
Result<Membership> decode_membership(ConstBytes bytes);

// The place of the receiver in an epoch of an elastic job, where ranks change.
struct Seat {
  Rank rank = -1;
  std::vector<std::byte> notice;  // for the receiver, from the handler of the server
  Membership membership;
};
// Takes the encoded membership, which is the same for all receivers.
std::vector<std::byte> encode_seat(Rank rank, ConstBytes notice, ConstBytes membership);
// Returns a rank of the membership.
Result<Seat> decode_seat(ConstBytes bytes);

}  // namespace sirtaki::rendezvous
