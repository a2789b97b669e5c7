// Plan: makes the plan of a run from the command line and the environment. Reads files, resolves host names; starts
// nothing.
#pragma once

#include "launcher/cli.h"
#include "launcher/job.h"
#include "runtime/base/config/config_load.h"

namespace sirtaki::launcher {

Result<JobPlan> make_plan(RunOptions options, const Environment& environment);

}  // namespace sirtaki::launcher
