#include "runtime/base/config/job_env.h"

#include <array>
#include <limits>

#include "runtime/base/config/option_value.h"

namespace sirtaki {
namespace {

// Names of the variables of one launcher; an empty name means that the launcher sets none.
struct Launcher {
  std::string_view name;
  std::string_view rank;
  std::string_view size;
  std::string_view local_rank;
  std::string_view local_size;
  std::string_view job_id;
};

constexpr std::array<Launcher, 5> kLaunchers = {{
    {"sirtakirun", "SIRTAKI_JOB_RANK", "SIRTAKI_JOB_SIZE", kLocalRankVariable, kLocalSizeVariable, ""},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"mpiexec (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_JOB_ID"},
}};

std::string_view lookup(const Environment& environment, std::string_view name) {
  const auto found = name.empty() ? environment.end() : environment.find(name);
  return found == environment.end() ? std::string_view() : std::string_view(found->second);
}

Result<int> number(const Environment& environment, std::string_view name, int low, int high) {
  const std::string_view text = lookup(environment, name);
  const auto value = parse_int(text);
  if (!value || *value < low || *value > high) {
    return invalid_argument("the environment variable " + std::string(name) + " is \"" + std::string(text) +
                            "\"; a whole number from " + std::to_string(low) + " to " + std::to_string(high) +
                            " is expected. The launcher sets it; unset it to run alone");
  }
  return static_cast<int>(*value);
}

Status half_set(const Launcher& launcher, bool has_rank) {
  const std::string_view given = has_rank ? launcher.rank : launcher.size;
  const std::string_view missing = has_rank ? launcher.size : launcher.rank;
  return invalid_argument("the environment has " + std::string(given) + " but not " + std::string(missing) + "; " +
                          std::string(launcher.name) + " sets both. Set " + std::string(missing) + " too, or unset " +
                          std::string(given) + " to run alone");
}

// Shells inside a Slurm allocation have SLURM_NTASKS, or SLURM_PROCID of the batch step, without being a task of srun;
// so one of the two variables alone is no error there.
bool is_slurm(const Launcher& launcher) {
  return launcher.name == "srun";
}

Status read_optional(const Environment& environment, std::string_view name, int low, std::optional<int>* out) {
  if (!lookup(environment, name).empty()) {
    SRT_ASSIGN(*out, number(environment, name, low, std::numeric_limits<int>::max()));
  }
  return {};
}

std::string first_set(const Environment& environment, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (const auto text = lookup(environment, name); !text.empty()) {
      return std::string(text);
    }
  }
  return {};
}

Status add_meeting_point(const Environment& environment, const Launcher& launcher, JobEnv* job) {
  // Users of mpirun and srun set the torch variables by hand in their scripts, so they count under every launcher.
  job->host = lookup(environment, "MASTER_ADDR");
  if (!lookup(environment, "MASTER_PORT").empty()) {
    SRT_ASSIGN(const int port, number(environment, "MASTER_PORT", 1, std::numeric_limits<std::uint16_t>::max()));
    job->port = static_cast<std::uint16_t>(port);
  }
  // Slurm also starts PMI and Open MPI ranks; each of them has rank 0 on the first node of the list, which need not be
  // the node of the launcher.
  if (job->host.empty()) {
    job->host = first_slurm_host(first_set(environment, {"SLURM_STEP_NODELIST", "SLURM_NODELIST"}));
  }
  if (job->host.empty() && is_slurm(launcher)) {
    job->host = lookup(environment, "SLURM_LAUNCH_NODE_IPADDR");
  }
  return {};
}

// Adds the local size of a step on one node. Slurm gives the number of nodes of a step, not that of its tasks on this
// node. The id of the step is part of the id of the job, because two steps of a job may run at once.
void add_slurm_step(const Environment& environment, JobEnv* job) {
  if (first_set(environment, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}) == "1") {
    job->local_size = job->size;
  }
  if (const auto step = lookup(environment, "SLURM_STEP_ID"); !step.empty()) {
    job->job_id += "." + std::string(step);
  }
}

Status check_local(const JobEnv& job, const Launcher& launcher) {
  if (job.local_rank && job.local_size && *job.local_rank >= *job.local_size) {
    return invalid_argument("the environment contradicts itself: " + std::string(launcher.local_rank) + " is " +
                            std::to_string(*job.local_rank) + " and " + std::string(launcher.local_size) + " is " +
                            std::to_string(*job.local_size));
  }
  return {};
}

Result<JobEnv> read_job(const Environment& environment, const Launcher& launcher) {
  JobEnv job;
  job.launcher = launcher.name;
  constexpr int kMaxRanks = 65536;
  SRT_ASSIGN(job.size, number(environment, launcher.size, 1, kMaxRanks));
  SRT_ASSIGN(job.rank, number(environment, launcher.rank, 0, kMaxRanks - 1));
  if (job.rank >= job.size) {
    return invalid_argument("the environment contradicts itself: " + std::string(launcher.rank) + " is " +
                            std::to_string(job.rank) + " and " + std::string(launcher.size) + " is " +
                            std::to_string(job.size) + "; ranks are 0 to size - 1");
  }
  SRT_TRY(read_optional(environment, launcher.local_rank, 0, &job.local_rank));
  SRT_TRY(read_optional(environment, launcher.local_size, 1, &job.local_size));
  job.job_id = lookup(environment, launcher.job_id);
  if (is_slurm(launcher)) {
    add_slurm_step(environment, &job);
  }
  SRT_TRY(check_local(job, launcher));
  SRT_TRY(add_meeting_point(environment, launcher, &job));
  return job;
}

}  // namespace

Result<JobEnv> detect_job(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const bool has_rank = !lookup(environment, launcher.rank).empty();
    const bool has_size = !lookup(environment, launcher.size).empty();
    if (has_rank && has_size) {
      return read_job(environment, launcher);
    }
    if (has_rank != has_size && !is_slurm(launcher)) {
      return half_set(launcher, has_rank);
    }
  }
  return JobEnv{};
}

std::string first_slurm_host(std::string_view list) {
  // A comma inside brackets does not end the first entry.
  const std::size_t open = list.find_first_of("[,");
  if (open == std::string_view::npos || list[open] == ',') {
    return std::string(list.substr(0, open));
  }
  const std::size_t close = list.find(']', open);
  if (close == std::string_view::npos) {
    return {};
  }
  const std::string_view ranges = list.substr(open + 1, close - open - 1);
  const std::string_view first = ranges.substr(0, ranges.find_first_of(",-"));
  const std::string_view behind = list.substr(close + 1);
  const std::string_view suffix = behind.substr(0, behind.find(','));
  if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos) {
    return {};
  }
  std::string host = std::string(list.substr(0, open)) + std::string(first);
  // "rack[1-2]n[05-06]": a second pair of brackets is expanded the same way.
  return suffix.find('[') == std::string_view::npos ? host + std::string(suffix) : host + first_slurm_host(behind);
}

}  // namespace sirtaki
