// Scope: names of operations of a process set contain its ranks, so that every reader of a name knows the participants.
//
// An example is "grad of ranks 0-4, 7": the name that the program gave, then the set as RankSet prints it. Pure.
#pragma once

#include <string>
#include <string_view>

#include "runtime/control/rank_set.h"

namespace sirtaki::control {

// Returns the name of an operation of a process set. Requires a set that is not empty.
std::string scoped_name(std::string_view name, const RankSet& ranks);

// Returns the ranks that take part in operations of that name, among `size` ranks: all, unless the name has a set.
RankSet scope_of(std::string_view name, int size);

// Returns true for the form of names of process sets. Names of a program must not have it.
bool has_scope(std::string_view name);

}  // namespace sirtaki::control
