// Describes a disagreement of ranks: tensor, ranks, both values, likely cause. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/control/messages.h"
#include "runtime/control/rank_set.h"

namespace sirtaki::control {

// A value that some ranks have in common.
template <class T>
struct Group {
  T value;
  RankSet ranks;
};

// Returns OK if all values are compatible. Requires at least one group, and every rank in one group.
Status describe_mismatch(const std::string& name, std::vector<Group<OpMeta>> groups);
Status describe_mismatch(const std::string& name, std::vector<Group<StreamOpen>> groups);

}  // namespace sirtaki::control
