// Converts structs of the C interface to values of local updates, and back, with every check that needs no other rank.
//
// Pure functions; any thread. Errors are kInvalidArgument and name the field and the tensor.
#pragma once

#include "adapters/c/sirtaki.h"
#include "runtime/local_updates/model.h"
#include "runtime/local_updates/options.h"
#include "runtime/local_updates/updater.h"

namespace sirtaki::adapters {

Result<local_updates::LocalOptions> to_local_options(const sirtaki_local_args& given);
Result<local_updates::LocalModel> to_local_model(const sirtaki_local_args& given);
Result<local_updates::LocalStep> to_local_step(const sirtaki_local_step_args& given);
// Writes the outcome of a call. `out` is nullptr, or has its struct_size set.
Status from_outcome(const local_updates::LocalOutcome& outcome, const local_updates::LocalPace& pace,
                    sirtaki_local_outcome* out);

}  // namespace sirtaki::adapters
