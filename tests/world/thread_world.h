// ThreadWorld: a whole job in one process with real threads and sockets: a coordinator, and one session per rank, each
// used by a thread of its own. Runs the same scenarios as SimWorld; meant for ThreadSanitizer.
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
  std::string options_toml;            // TOML as from the program, e.g. "schedule.fusion_bytes = \"4KiB\"\n"
  int epochs = 1;                      // runs of the scenario, with new sessions on the same coordinator
  int ranks_per_host = 0;              // 0: all ranks on one host; of several hosts, only the last one may have fewer
  bool on_device = false;              // tensors are on a fake GPU, a slow one, one per rank
  Rank cpu_rank = -1;                  // rank whose tensors are on the host nevertheless
  Rank broken_rank = -1;               // rank whose GPU fails at the first work
  Rank short_rank = -1;                // rank whose GPU has no memory left
  Rank rank_without_kernels = -1;      // rank whose GPU the plug-in has no code for
  bool nccl = false;                   // ranks have a fake NCCL
  Rank rank_without_nccl = -1;         // rank that has no NCCL nevertheless
  Rank nccl_error_rank = -1;           // rank to which NCCL reports an error
  std::uint64_t nccl_error_after = 3;  // calls until then
  bool expect_no_leaks = false;        // the GPU must have all of its objects back in the end
  bool expect_steady_memory = false;   // no memory of the GPU may be allocated or released after a stream has opened
  // Receives the statistics of the session of each rank before it closes; on the threads of the ranks.
  std::function<void(Rank rank, const std::string& json)> stats = {};
};

// Runs one scenario on each rank. Returns a description of the first failure; empty on success.
std::string run_threads(const ThreadOptions& options, const ScenarioFn& scenario);
// Runs a program that uses its session itself.
std::string run_sessions(const ThreadOptions& options, const std::function<void(engine::Session&)>& program);

}  // namespace sirtaki::world
