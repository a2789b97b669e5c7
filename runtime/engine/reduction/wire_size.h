// Sizes of tensors and partitions on the wire: their elements as the codec encodes them.
//
// Used to make plans and to run partitions. Pure functions.
#pragma once

#include <cstdint>

#include "compression/coder.h"
#include "runtime/base/dtype.h"
#include "runtime/engine/common/requests.h"
#include "scheduler/plan/plan.h"
#include "scheduler/policies/policy.h"

namespace sirtaki::engine {

// Returns the shape of all elements; rows are the slices of the first dimension if there are two or more dimensions.
compression::Shape shape_of(const StreamTensor& tensor);

// Returns the tensor of a plan for `ranks` ranks, with stripe and bytes on the wire as decided. `exchanging`: number of
// ranks that exchange compressed data; 0: all. kInvalidArgument names the tensor: unknown codec, parameters out of
// range, or a reduction that the codec does not support.
Result<scheduler::PlannedTensor> planned_tensor(const scheduler::TensorInfo& tensor, scheduler::Decision decision,
                                                int ranks, int exchanging = 0);

// Returns the element type of the allreduce of tensors or of a partition that are not compressed.
DType wire_dtype(const scheduler::WireFormat& format, DType dtype);
DType wire_dtype(const scheduler::Partition& partition);

}  // namespace sirtaki::engine
