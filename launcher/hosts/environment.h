// Environment of the ranks: selects the variables of the launcher's environment that they get. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/hosts/hosts.h"
#include "runtime/base/config/config_load.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Returns whether the variable describes one rank, as launchers set it: SIRTAKI_JOB_RANK, RANK,
// HOROVOD_RANK, ...
bool describes_rank(std::string_view name);
// Returns whether the variable describes this machine, login or terminal (HOME, DISPLAY, SSH_*, CUDA_VISIBLE_DEVICES,
// ...), or this process in another job.
bool stays_here(std::string_view name);

// Returns all variables except stays_here(), then `wanted` ("NAME" or "NAME=VALUE", -x), which wins. An error
// names a variable that is not set, or a text that is not a variable name.
// With `horovod`, MASTER_ADDR and MASTER_PORT are the user's unless another job has set them: the ranks get none from
// this launcher, and the program may meet there.
Result<Variables> variables_for_ranks(const Environment& environment, const std::vector<std::string>& wanted,
                                      bool horovod = false);

// Returns the variables of one rank, which tell its numbers in the job before any import: under Sirtaki's names, and
// under those of torchrun (RANK, WORLD_SIZE, ...), or with `horovod` under those of Horovod.
Variables variables_of_rank(Rank rank, int size, const RankNumbers& numbers, const std::string& host, bool horovod);

// Puts `folder` in front of a variable that holds a list of folders, such as PYTHONPATH.
void put_first(Variables& variables, const std::string& name, const std::string& folder);

}  // namespace sirtaki::launcher
