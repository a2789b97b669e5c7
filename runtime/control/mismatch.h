// Says how ranks disagree: which tensor, which ranks, both values, likely cause. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/control/messages.h"
#include "runtime/control/rank_set.h"

namespace sirtaki::control {

// What some ranks said alike.
template <class T>
struct Group {
  T value;
  RankSet ranks;
};

// ok when all metas are compatible and allowed together. Every rank is in one group; at least one group.
Status describe_mismatch(const std::string& name, std::vector<Group<OpMeta>> groups);
Status describe_mismatch(const std::string& name, std::vector<Group<StreamOpen>> groups);

}  // namespace sirtaki::control
