// What tensors and partitions of a stream are on the network: their elements as the codec encodes them.
//
// For: making plans, and running partitions. Pure functions.
#pragma once

#include <cstdint>

#include "compression/coder.h"
#include "runtime/base/dtype.h"
#include "runtime/engine/common/requests.h"
#include "scheduler/plan/plan.h"
#include "scheduler/policies/policy.h"

namespace sirtaki::engine {

// Of all its elements; rows are the slices of the first dimension where there are two or more.
compression::Shape shape_of(const StreamTensor& tensor);

// The tensor in a plan for `ranks` ranks, with the decision's stripe and its bytes on the network. `exchanging`: ranks
// between which they travel; 0: all. kInvalidArgument, naming the tensor: a codec this build does not know, parameters
// out of range, a reduction the codec does not support.
Result<scheduler::PlannedTensor> planned_tensor(const scheduler::TensorInfo& tensor, scheduler::Decision decision,
                                                int ranks, int exchanging = 0);

// Element type of the collective that reduces a partition that is not lossy.
DType wire_dtype(const scheduler::Partition& partition);

}  // namespace sirtaki::engine
