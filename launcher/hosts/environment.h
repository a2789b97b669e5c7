// Which variables of the launcher's environment the ranks get. Pure.
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

// SIRTAKI_JOB_RANK, HOROVOD_RANK and the like: what a launcher says to each of its ranks.
bool is_place_in_job(std::string_view name);
// Variables that describe this machine, login or terminal (HOME, DISPLAY, SSH_*, CUDA_VISIBLE_DEVICES, ...), or this
// process's own place in another job.
bool stays_here(std::string_view name);

// Everything but stays_here(), then `wanted` ("NAME" or "NAME=VALUE", -x), which always wins. An error names a variable
// that is not set, or what is no variable name.
Result<Variables> variables_for_ranks(const Environment& environment, const std::vector<std::string>& wanted);

// Returns what a rank alone is told: who it is and where, before any import; with `horovod` under Horovod's names, too.
Variables variables_of_rank(Rank rank, int size, const RankPlace& place, const std::string& host, bool horovod);

// Puts `folder` in front of a variable that is a list of folders, such as PYTHONPATH.
void put_first(Variables& variables, const std::string& name, const std::string& folder);

}  // namespace sirtaki::launcher
