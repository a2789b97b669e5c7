// Who started this process, and what its environment says of rank, size and meeting point.
//
// Pure function of the variables. Sirtaki's own launcher sets the options job.* instead (config.h); they win over
// whatever is found here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/config/config_load.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki {

struct JobEnv {
  std::string launcher = "none";  // "sirtakirun", "torchrun", "mpirun (Open MPI)", "mpiexec (PMI)", "srun", "none"
  Rank rank = 0;
  int size = 1;
  std::optional<int> local_rank;
  std::optional<int> local_size;
  std::string host;        // where rank 0 runs, as far as it is known
  std::uint16_t port = 0;  // 0: not known
  std::string job_id;      // the launcher's name for the job, or ""
};

// The launcher whose rank and size are both set; the first of: sirtakirun (SIRTAKI_JOB_RANK), torchrun (RANK), Open
// MPI, PMI (MPICH, Intel MPI), Slurm. Half a set (RANK without WORLD_SIZE), a rank outside 0..size-1 or a word where a
// number belongs is kInvalidArgument and names the variables.
Result<JobEnv> detect_job(const Environment& environment);

// First host of a Slurm node list: "node[03-07,9],login" -> "node03". Empty for a list that is none.
std::string first_slurm_host(std::string_view list);

}  // namespace sirtaki
