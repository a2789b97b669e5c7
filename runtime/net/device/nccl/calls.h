// Which functions of NCCL make up a collective.
//
// For: NcclCollectives. Threads: pure functions. Not for: averages, of which this is the sum, but of halves.
#pragma once

#include <vector>

#include "runtime/net/collectives/collectives.h"
#include "runtime/net/device/nccl/communicator.h"

namespace sirtaki::net::nccl {

// True for averages of halves: NCCL divides each rank's elements before it adds them up, since their sum need not fit.
// Elements below 2^-14 lose bits by it in float16, and below 2^-25 times the number of ranks all of them.
bool averages_itself(const CollectiveArgs& args);

// kUnsupported for reductions of elements that NCCL does not know.
Status check_supported(const CollectiveArgs& args);

// Of arguments that check_args() and check_supported() let pass, on `stream`; none where nothing is to be done, which
// then is so on every rank that this one would have met. `scratch`: 1 byte on the device, for a barrier.
std::vector<Communicator::Call> calls_of(const CollectiveArgs& args, Rank rank, NativeStream stream,
                                         std::byte* scratch);

}  // namespace sirtaki::net::nccl
