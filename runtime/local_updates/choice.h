// Makes LocalOptions from the text of a policy, or from a function of the program.
//
// Used by adapters. Pure functions; any thread. runtime/local_updates/controller implements the policies.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/local_updates/options.h"

namespace sirtaki::local_updates {

// Returns the number of steps of the next round, which must be the same on all ranks. The argument is a JSON object of
// agreed measurements: step, steps_left, interval, delay, mode, lr, loss_before, loss, step_seconds, transfer_seconds,
// stall_seconds, variance; null means unknown.
using StepsFunction = std::function<std::int64_t(const std::string& round)>;

// Returns the options of a number of steps, or of a policy with its keys (runtime/local_updates/controller/spec.h):
// diloco includes its outer optimizer and codec; all others, functions too, have an outer Nesterov momentum of 0.5 at a
// rate of 0.7. kInvalidArgument: see parse_interval().
Result<LocalOptions> local_options(std::string_view interval);
LocalOptions local_options(StepsFunction steps);

}  // namespace sirtaki::local_updates
