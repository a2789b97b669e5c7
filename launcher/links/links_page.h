// Links page: the pairs of hosts that `sirtakirun --check` measures, and the text about them.
//
// Used by the ranks of the measurement (measure.h). Pure, apart from the codecs that links_advice() times.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/config/config.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "scheduler/plan/wire_cost.h"

namespace sirtaki::launcher {

using HostPair = std::pair<Rank, Rank>;  // the smaller rank first

// The link between two hosts as the first of them sees it, in seconds and in bytes of payload a second. Sent as it is.
struct LinkReading {
  double round_trip = 0;
  double there = 0;  // from the first host of the pair
  double back = 0;
};

// Returns a ring of all hosts, so that every host is in two pairs and a slow host in two slow ones.
std::vector<HostPair> measured_pairs(int hosts);

// Returns the table of readings, one for each measured pair, with a mark at the slowest.
std::string links_table(const std::vector<std::string>& hosts, const std::vector<LinkReading>& readings);

// Returns the link that all hosts together have: the lowest rate and the highest latency.
scheduler::LinkFacts weakest_link(const std::vector<LinkReading>& readings);

// Returns the gain that the settings `auto` of `sirtaki estimate` would have over dense gradients, the faster one
// first, for models of some sizes with one rank on each of the hosts.
Result<std::string> links_advice(const scheduler::LinkFacts& link, int hosts, const Config& config);

}  // namespace sirtaki::launcher
