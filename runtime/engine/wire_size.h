// What partitions of a stream are on the network: their elements as the codec encodes them.
//
// For: running partitions, and telling the planner what they weigh. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/dtype.h"
#include "scheduler/plan.h"

namespace sirtaki::engine {

// Element type of the collective that reduces the partition.
DType wire_dtype(const scheduler::Partition& partition);

// Bytes of `numel` elements of the partition in that collective, before its own factor.
std::int64_t wire_bytes(const scheduler::Partition& partition, std::int64_t numel);
inline std::int64_t wire_bytes(const scheduler::Partition& partition) {
  return wire_bytes(partition, partition.numel);
}

// The same of each tensor.
std::vector<std::int64_t> wire_bytes_by_tensor(const scheduler::Plan& plan);

}  // namespace sirtaki::engine
