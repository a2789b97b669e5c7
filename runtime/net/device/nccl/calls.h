// The NCCL functions that make up a collective.
//
// Used by NcclCollectives. Pure functions. They sum where an average is wanted, except for halves; the caller divides.
#pragma once

#include <vector>

#include "runtime/net/collectives/collectives.h"
#include "runtime/net/device/nccl/communicator.h"

namespace sirtaki::net::nccl {

// Returns true for averages of halves: NCCL divides the elements of each rank before it sums them, because the sum
// might overflow. In float16, elements below 2^-14 lose bits by it, and elements below 2^-25 times the number of ranks
// vanish.
bool averages_itself(const CollectiveArgs& args);

// Returns kUnsupported for reductions of element types that NCCL lacks.
Status check_supported(const CollectiveArgs& args);

// Returns the calls for arguments that pass check_args() and check_supported(), on `stream`. The result is empty if
// there is nothing to do, which is then the case on every peer, too. `scratch`: 1 byte of device memory, for a barrier.
std::vector<Communicator::Call> calls_of(const CollectiveArgs& args, Rank rank, NativeStream stream,
                                         std::byte* scratch);

}  // namespace sirtaki::net::nccl
