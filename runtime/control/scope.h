// Scope: operations of a process set carry its ranks in their name, so whoever sees the name knows who takes part.
//
// "grad of ranks 0-4, 7": what the program calls it, then the set as RankSet prints it. Pure.
#pragma once

#include <string>
#include <string_view>

#include "runtime/control/rank_set.h"

namespace sirtaki::control {

// `ranks`: not empty.
std::string scoped_name(std::string_view name, const RankSet& ranks);

// Who takes part in operations of that name, among `size` ranks: all, unless it says otherwise.
RankSet scope_of(std::string_view name, int size);

// Reads as the name of an operation of a process set. A program's own names must not.
bool has_scope(std::string_view name);

}  // namespace sirtaki::control
