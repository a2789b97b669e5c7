// Checks of an operation or a stream that need no other rank. Pure functions.
#pragma once

#include "runtime/base/status.h"
#include "runtime/engine/common/requests.h"

namespace sirtaki::engine {

// Returns kInvalidArgument or kUnsupported, with the name of the tensor and the change to make, if `spec` is wrong.
Status check_op(const OpSpec& spec, Rank rank, int size);
// Returns the rows that the rank at `place` of `size` ranks gets in a reduce-scatter of `rows` rows: the first ranks
// get one more.
std::int64_t scattered_rows(std::int64_t rows, int size, Rank place);
// Returns an error like check_op() if the stream or one of its tensors is wrong.
Status check_stream(const StreamSpec& spec, Rank rank, int size);

}  // namespace sirtaki::engine
