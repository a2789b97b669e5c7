// What codecs cost this rank: a few milliseconds of work when a stream with a policy that weighs them begins.
//
// For: the profiles that such streams exchange. Takes its time on the calling thread.
#pragma once

#include "runtime/base/loop.h"
#include "scheduler/plan/profile.h"

namespace sirtaki::engine {

// The shortest of some runs by the loop's clock, at the policies' own parameters. In virtual time, which stands still
// meanwhile, all is 0.
scheduler::CodecCosts time_codecs(Loop& loop, int ranks);

}  // namespace sirtaki::engine
