// What can be said of an operation on this rank alone, before any other rank is asked. Pure.
#pragma once

#include "runtime/base/status.h"
#include "runtime/engine/common/requests.h"

namespace sirtaki::engine {

// kInvalidArgument or kUnsupported, naming the tensor and what to change.
Status check_op(const OpSpec& spec, Rank rank, int size);
Status check_stream(const StreamSpec& spec, Rank rank, int size);

}  // namespace sirtaki::engine
