// LocalOptions as a program chooses them: by a policy's text, or by a function of its own.
//
// For: adapters. Pure functions; any thread. Not for: what a policy does (runtime/local_updates/controller).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/local_updates/options.h"

namespace sirtaki::local_updates {

// The steps of the next round, the same on all ranks, from a JSON object of what they all measured: step, steps_left,
// interval, delay, mode, lr, loss_before, loss, step_seconds, transfer_seconds, stall_seconds, variance; null: not
// known.
using StepsFunction = std::function<std::int64_t(const std::string& round)>;

// Of a number of steps or a policy with its keys (runtime/local_updates/controller/spec.h); diloco brings its outer
// optimizer and codec. kInvalidArgument: as parse_interval().
Result<LocalOptions> local_options(std::string_view interval);
LocalOptions local_options(StepsFunction steps);

}  // namespace sirtaki::local_updates
