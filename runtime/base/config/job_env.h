// Detects the launcher of this process, and rank, size and meeting point, from the environment.
//
// A pure function of the variables. sirtakirun sets the options job.* instead (config.h), which win over these values.
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
  std::string host;        // host of rank 0 if it is known
  std::uint16_t port = 0;  // 0 if it is not known
  std::string job_id;      // name that the launcher gave the job, or ""
};

// Returns the first launcher whose rank and size are both set: sirtakirun (SIRTAKI_JOB_RANK), torchrun (RANK), Open
// MPI, PMI (MPICH, Intel MPI), Slurm. Returns kInvalidArgument with the variables if one of the two is missing (RANK
// without WORLD_SIZE), a rank is outside 0..size-1, or a value is no number.
Result<JobEnv> detect_job(const Environment& environment);

// Returns the first host of a Slurm node list, "node03" of "node[03-07,9],login"; empty for a malformed list.
std::string first_slurm_host(std::string_view list);

}  // namespace sirtaki
