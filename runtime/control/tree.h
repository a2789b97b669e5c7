// The tree of relays between the ranks of a job and its coordinator. Pure.
//
// With more ranks than the fan-out, every `fanout` neighbours share a relay, and so on upwards until the coordinator
// has at most `fanout` children. A relay runs in the process of one of the ranks below it and is lost with that rank.
#pragma once

#include <vector>

#include "runtime/control/rank_set.h"

namespace sirtaki::control {

struct RelayPlace {
  Rank host = -1;
  int parent = -1;  // index in the list; -1: the coordinator
  RankSet below;
  std::vector<RankSet> children;  // a single rank, or all ranks below another relay
};

// Returns the relays, lowest level first: rank r sends to number r / fanout. Empty: every rank sends to the coordinator
// itself. `fanout` below 2 means no tree.
std::vector<RelayPlace> plan_tree(int size, int fanout);

}  // namespace sirtaki::control
