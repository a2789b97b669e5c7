// Timing of codecs on this rank. It takes a few milliseconds, when a stream begins whose policy weighs the cost of
// codecs.
//
// The times go into the profiles that such streams exchange. Blocks the calling thread.
#pragma once

#include <functional>

#include "runtime/base/loop.h"
#include "runtime/net/collectives/collectives.h"
#include "scheduler/plan/profile.h"

namespace sirtaki::engine {

// Returns the shortest of several runs of each codec, by the clock of the loop and with the parameters that policies
// use; a rank whose host sums first encodes only its shares. All costs are 0 in virtual time, which stands still
// meanwhile.
scheduler::CodecCosts time_codecs(Loop& loop, const net::Collectives& net);

// Returns the same by another clock, for so many ranks with a host of their own each.
scheduler::CodecCosts time_codecs(const std::function<TimePoint()>& now, int ranks);

}  // namespace sirtaki::engine
