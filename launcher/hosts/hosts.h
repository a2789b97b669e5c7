// Hosts: parses -H and hostfiles, and places ranks on hosts. Pure; no name is resolved here.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki::launcher {

inline constexpr int kMaxSlots = 65536;  // limit for one host; more is a typing error

struct Host {
  std::string name;  // name for ssh: "node1", "user@node1", "10.0.0.2", "fd00::2" (without brackets)
  int slots = 1;
  bool operator==(const Host&) const = default;
};

// Returns whether this is a name or an address of the loopback interface.
inline bool is_loopback_name(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// Consecutive ranks on one host.
struct Placement {
  std::string host;
  bool local = false;
  int first_rank = 0;
  int ranks = 0;
  int slots = 0;        // at least `ranks`
  int spare_slots = 0;  // of these, the ones that it has for spares alone, and the user has not named
};

// Parses "a:2,b,[fd00::2]:4": a host without a number has one slot; slots of a repeated host add up.
Result<std::vector<Host>> parse_host_list(std::string_view text);
// Parses lines "name slots=N", "name:N" or "name"; '#' starts a comment; blank lines are ignored. `path` is for
// messages.
Result<std::vector<Host>> parse_hostfile(std::string_view text, std::string_view path);
struct PlaceOptions {
  int most = 0;        // ranks that the job may have later; hosts for these get no rank yet
  bool apart = false;  // the names of this machine are several hosts, else one
};
// Fills hosts in order. Without `np` every slot gets a rank; without hosts, `np` ranks run here. `is_local` returns
// true for the names of this machine.
Result<std::vector<Placement>> place_ranks(const std::vector<Host>& hosts, std::optional<int> np,
                                           const std::function<bool(const std::string&)>& is_local,
                                           const PlaceOptions& options = {});

// Gives the hosts slots for spares, until there are so many in all: one after the other, on the host with the fewest.
void add_spare_slots(std::vector<Placement>& placements, int slots);

// Numbers of a rank: its own among the ranks of its host, and that of its host among those that have as many ranks.
struct RankNumbers {
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
  bool operator==(const RankNumbers&) const = default;
};
// Returns the numbers of each rank; `hosts` holds the host of each rank.
std::vector<RankNumbers> rank_numbers(const std::vector<std::string>& hosts);

// Returns the numbers of a rank that comes to `host` later, beside ranks with their hosts and numbers: the smallest
// local rank that is free there, with the sizes that the job has then.
RankNumbers numbers_beside(const std::vector<std::pair<std::string, RankNumbers>>& others, const std::string& host);

// Returns the threads for OpenMP in each of `ranks` processes that share `cores`; at least 1.
int omp_threads(int cores, int ranks);

}  // namespace sirtaki::launcher
