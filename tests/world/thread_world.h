// ThreadWorld: a whole job in one process with real threads and sockets: a hub, and one session a rank, each used by a
// thread of its own. The same scenarios as in SimWorld; meant for ThreadSanitizer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/base/config/config_load.h"
#include "runtime/engine/session/session.h"
#include "tests/world/world.h"

namespace sirtaki::world {

struct ThreadOptions {
  std::uint64_t seed = 1;
  int size = 2;
  std::string options_toml;      // as from the program, e.g. "schedule.fusion_bytes = \"4KiB\"\n"
  int epochs = 1;                // the scenario runs so many times, with sessions made anew on the same hub
  int ranks_per_host = 0;        // 0: all on one; of several, only the last one may have fewer
  bool on_device = false;        // tensors are on a GPU that is played, a slow one, one a rank
  Rank cpu_rank = -1;            // but for those of this one
  Rank broken_rank = -1;         // whose GPU breaks down at the first work
  bool nccl = false;             // they have NCCL, which is played
  Rank rank_without = -1;        // but for this one
  Rank nccl_breaks = -1;         // it says to this one that there was an error
  std::uint64_t nccl_lasts = 3;  // after so many calls
  bool all_given_back = false;   // in the end the GPU has back what was made of it
  // Gets what each rank's session counts, before it closes; on the ranks' threads.
  std::function<void(Rank rank, const std::string& json)> stats = {};
};

// Runs one scenario a rank. Empty: all ended well; else what went wrong.
std::string run_threads(const ThreadOptions& options, const ScenarioFn& scenario);
// The same for a program that uses its session itself.
std::string run_sessions(const ThreadOptions& options, const std::function<void(engine::Session&)>& program);

}  // namespace sirtaki::world
