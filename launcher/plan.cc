#include "launcher/plan.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "launcher/agent/host_facts.h"
#include "launcher/join/join_secret.h"
#include "runtime/base/host_info.h"

namespace sirtaki::launcher {

namespace {

constexpr std::size_t kMaxFile = std::size_t{1} << 20;
constexpr int kMostRanks = 65535;  // that elastic.max takes

Result<std::string> read_text(const std::string& path, const char* option) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file) {
    content << file.rdbuf();
  }
  if (!file || std::filesystem::is_directory(path)) {
    return unavailable(std::string(option) + ": cannot read " + path + ": " + strerror(errno != 0 ? errno : EISDIR));
  }
  if (content.str().size() > kMaxFile) {
    return invalid_argument(std::string(option) + ": " + path + " is larger than 1 MiB");
  }
  return content.str();
}

Result<std::vector<Host>> read_hosts(const RunOptions& options) {
  if (!options.hostfile.empty()) {
    SRT_ASSIGN(const std::string text, read_text(options.hostfile, "--hostfile"));
    return parse_hostfile(text, options.hostfile);
  }
  if (!options.hosts.empty()) {
    return parse_host_list(options.hosts);
  }
  return std::vector<Host>{};
}

bool chosen(const Config& config, const char* option) {
  return config.source(option) != "default";
}

int slots_of(const std::vector<Host>& hosts) {
  int slots = 0;
  for (const Host& host : hosts) {
    slots += host.slots;
  }
  return slots;
}

// Reads the configuration file once, on this host, so that hosts without the file get the same options.
Status add_configuration(RunOptions& options, const std::vector<Host>& hosts, const Environment& environment,
                         JobPlan& plan) {
  ConfigSources sources;
  sources.environment = environment;
  sources.command_line = options.option_lines;
  sources.file_path = options.config_file;
  if (sources.file_path.empty()) {
    if (const auto found = environment.find(kConfigVariable); found != environment.end()) {
      sources.file_path = found->second;
    }
  }
  if (!sources.file_path.empty()) {
    SRT_ASSIGN(sources.file_text, read_text(sources.file_path, "--config-file"));
    plan.variables.emplace_back(kConfigVariable, sources.file_path);
    plan.variables.emplace_back(kConfigTextVariable, *sources.file_text);
  }
  SRT_ASSIGN(plan.config, load_config(sources));
  if (options.horovod && plan.config->elastic.min > 0 && !chosen(*plan.config, "elastic.max") && !hosts.empty()) {
    // Elastic jobs of Horovod take all slots of their hosts unless they are told the most ranks.
    const int most = std::min(slots_of(hosts), kMostRanks);
    options.option_lines += option_line("elastic.max", std::to_string(most));
    sources.command_line = options.option_lines;
    SRT_ASSIGN(plan.config, load_config(sources));
  }
  if (!options.option_lines.empty()) {
    std::string lines = options.option_lines;
    if (const auto outer = environment.find(kCommandLineVariable); outer != environment.end()) {
      lines = outer->second + lines;
    }
    plan.variables.emplace_back(kCommandLineVariable, lines);
  }
  return Status();
}

Result<std::string> own_path() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return unavailable("the path of this program cannot be found: " + error.message());
  }
  return path.string();
}

// Returns the folder with the package named `horovod` in the Python environment that `program` was installed into.
Result<std::string> horovod_folder(const std::string& program) {
  namespace fs = std::filesystem;
  const fs::path lib = fs::path(program).parent_path().parent_path() / "lib";
  std::vector<fs::path> pythons;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(lib, error)) {
    if (entry.path().filename().string().starts_with("python3")) {
      pythons.push_back(entry.path());
    }
  }
  std::sort(pythons.begin(), pythons.end());
  for (const fs::path& python : pythons) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      const fs::path folder = python / packages / "sirtaki" / "_horovod";
      if (fs::is_directory(folder, error)) {
        return folder.string();
      }
    }
  }
  return unavailable("--horovod: the Python package sirtaki is not in " + lib.string() +
                     "/python3*/site-packages; call the sirtakirun that was installed with it");
}

// Spares join a job that grows, and their environment describes one of all its processes.
Status check_spares(int spares, int min, int max) {
  const std::string option = "--spares " + std::to_string(spares);
  if (spares > 0 && (min == 0 || max == 0)) {
    return invalid_argument(option +
                            " needs --elastic MIN:MAX: spares take the places of lost ranks, and other jobs have no "
                            "new ones");
  }
  if (spares > kMostRanks - max) {
    return invalid_argument(option + " and elastic.max " + std::to_string(max) + " are more than " +
                            std::to_string(kMostRanks) + " processes");
  }
  return {};
}

// Checks the fewest and the most ranks of an elastic job of `size` ranks on hosts with so many slots; 0: not given.
Status check_elastic(int min, int max, int size, int slots) {
  if (min > size) {
    return invalid_argument("elastic.min is " + std::to_string(min) + ", but the job has only " + std::to_string(size) +
                            " ranks; no rank could be lost");
  }
  if (max > 0 && min == 0) {
    const std::string most = std::to_string(max);
    return invalid_argument("elastic.max is " + most +
                            ", but without elastic.min the loss of a rank ends the job; set it, too: the fewest ranks "
                            "that go on, for example --elastic 1:" +
                            most);
  }
  if (max > 0 && max < size) {
    return invalid_argument("elastic.max is " + std::to_string(max) + ", but the job has " + std::to_string(size) +
                            " ranks at its start; start fewer with -np");
  }
  if (max > slots) {
    return invalid_argument("elastic.max is " + std::to_string(max) + ", but the hosts offer " + std::to_string(slots) +
                            " slots; name more hosts or a smaller MAX");
  }
  return {};
}

// Not all hosts are known yet: the job starts with at least so many ranks.
Result<int> fewest_ranks(const std::optional<int>& np, int min, int max, const std::string& option) {
  const int size = np.value_or(min);
  if (min == 0 || max == 0) {
    return invalid_argument(option + " needs --elastic MIN:MAX, the fewest and the most ranks of the job");
  }
  if (size < min || size > max) {
    return invalid_argument("-np " + std::to_string(size) + " is not between elastic.min and elastic.max (" +
                            std::to_string(min) + " and " + std::to_string(max) + ")");
  }
  return size;
}

// Returns whether a job loses all ranks of a host with one that fails. Horovod has no elastic jobs on a single host.
bool fails_by_host(const RunOptions& options, const std::vector<Host>& hosts, const Config& config) {
  if (options.horovod && !chosen(config, "elastic.on_failure")) {
    return hosts.size() > 1 || !options.discovery.script.empty() || options.join.port;
  }
  return config.elastic.on_failure == "host";
}

// Chooses the hosts of the ranks.
Status place(RunOptions& options, const std::vector<Host>& hosts, JobPlan& plan) {
  const int most = options.check ? 0 : static_cast<int>(plan.config->elastic.max);
  const int least = static_cast<int>(plan.config->elastic.min);
  const bool by_host = least > 0 && fails_by_host(options, hosts, *plan.config);
  plan.by_host = by_host && !options.check;
  SRT_TRY(check_spares(options.spares, least, static_cast<int>(plan.config->elastic.max)));
  plan.spares = options.check ? 0 : options.spares;
  if (!options.discovery.script.empty() || options.join.port) {
    const std::string option = options.join.hub    ? "--hub"
                               : options.join.port ? "--join-port"
                                                   : "--host-discovery-script";
    SRT_ASSIGN(plan.size, fewest_ranks(options.np, least, most, option));
    plan.places = most + plan.spares;
    // Without other hosts, this one has the ranks of the start unless it is the hub alone. Its name, unlike localhost,
    // leads to an address that hosts which join can reach.
    const bool here = hosts.empty() && !options.join.hub;
    plan.hosts = here ? std::vector<Host>{{host_info().hostname, plan.size}} : hosts;
    return {};
  }
  std::optional<int> np = options.np;
  if (!np && hosts.empty() && options.check) {
    np = 1;
  }
  if (!np && hosts.empty() && most > 0) {
    np = most;
  }
  if (options.horovod && least > 0 && most > 0 && !hosts.empty()) {
    // With Horovod, -np is what the start needs at least.
    np = std::max(np.value_or(0), std::min(most, slots_of(hosts)));
  }
  if (plan.spares > 0) {
    np = np.value_or(std::min(most, slots_of(hosts)));  // the slots of the hosts may be for spares
  }
  SRT_ASSIGN(plan.placements, place_ranks(hosts, np, is_this_host, {most + plan.spares, by_host}));
  plan.wanted = plan.placements;
  if (options.check) {
    options.tag_output = false;
    Rank rank = 0;
    for (Placement& placement : plan.placements) {
      placement.first_rank = rank++;
      placement.ranks = 1;
    }
  }
  int slots = 0;
  for (const Placement& placement : plan.placements) {
    plan.size += placement.ranks;
    slots += placement.slots;
  }
  plan.places = std::max(plan.size, most) + plan.spares;
  if (options.check) {
    return {};
  }
  SRT_TRY(check_elastic(least, most, plan.size, slots));
  if (plan.spares > 0) {
    add_spare_slots(plan.placements, plan.places);
  }
  return {};
}

}  // namespace

Result<JobPlan> make_plan(RunOptions options, const Environment& environment) {
  JobPlan plan;
  SRT_ASSIGN(plan.variables, variables_for_ranks(environment, options.env, options.horovod));
  SRT_ASSIGN(const std::vector<Host> hosts, read_hosts(options));
  SRT_TRY(add_configuration(options, hosts, environment, plan));
  SRT_TRY(place(options, hosts, plan));
  SRT_ASSIGN(plan.own_path, own_path());
  if (options.horovod) {
    SRT_ASSIGN(const std::string folder, horovod_folder(plan.own_path));
    put_first(plan.variables, "PYTHONPATH", folder);
  }
  if (options.join.port) {
    SRT_ASSIGN(plan.join_secret, join_secret(options.join.secret_file, environment, true));
  }
  for (const auto& [name, value] : environment) {
    if (name != kJoinSecretVariable) {
      plan.own_env.push_back(name + "=" + value);
    }
  }
  std::error_code error;
  plan.cwd = std::filesystem::current_path(error).string();
  if (error) {
    return unavailable("the working directory cannot be found: " + error.message());
  }
  const auto terminal = environment.find("TERM");
  if (options.colour == "auto" &&
      (environment.contains("NO_COLOR") || (terminal != environment.end() && terminal->second == "dumb"))) {
    options.colour = "never";
  }
  plan.options = std::move(options);
  return plan;
}

}  // namespace sirtaki::launcher
