// The NCCL functions that make up a collective.
//
// Used by NcclCollectives. Pure functions. For an average they sum and the caller divides, unless NCCL averages itself.
#pragma once

#include <vector>

#include "runtime/net/collectives/collectives.h"
#include "runtime/net/device/nccl/communicator.h"

namespace sirtaki::net::nccl {

// Returns true for averages that NCCL computes: it multiplies the elements of each rank by the inverse of the number of
// ranks before it sums them. That number must be a power of two for float32 and float64, so that the result is that of
// a sum and a division, except where an element becomes subnormal (it loses bits) or the sum would overflow (it does
// not). Halves are averaged so for any number of ranks, because their sum might overflow. Integers are not: versions of
// NCCL differ in the division of negative sums.
bool averages_itself(const CollectiveArgs& args, int size);

// Returns kUnsupported for barriers, which would need memory of the device, and for reductions of element types that
// NCCL lacks.
Status check_supported(const CollectiveArgs& args);

// The block that an alltoall keeps on its rank, which the caller copies; empty for other operations.
struct OwnBlock {
  ConstBytes from;
  Bytes to;
};
OwnBlock own_block(const CollectiveArgs& args, Rank rank);

// Returns the calls for arguments that pass check_args() and check_supported(), on `stream`, but for an own block. The
// result is empty if there is nothing to do, which is then the case on every peer, too; a peer of an alltoall may have
// calls for other ranks.
std::vector<Communicator::Call> calls_of(const CollectiveArgs& args, Rank rank, int size, NativeStream stream);

}  // namespace sirtaki::net::nccl
