// combine: the reduction of a collective on memory that has arrived: sums in rank order, averages divided at the end.
// Pure function of one thread at a time.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/base/tensor.h"
#include "runtime/base/types.h"

namespace sirtaki::net {

// out = sources[0] op sources[1] op ... ; `out` may be one of the sources. kAverage divides the sum by their number.
// Every source is out.size() bytes, a whole number of elements.
void combine(ReduceOp op, DType dtype, std::span<const std::byte* const> sources, Bytes out);

}  // namespace sirtaki::net
