#include "launcher/hosts/environment.h"

#include <algorithm>
#include <array>

namespace sirtaki::launcher {

namespace {

constexpr std::array<std::string_view, 33> kLocalNames = {"HOME",
                                                          "USER",
                                                          "LOGNAME",
                                                          "SHELL",
                                                          "MAIL",
                                                          "HOSTNAME",
                                                          "HOST",
                                                          "PWD",
                                                          "OLDPWD",
                                                          "SHLVL",
                                                          "_",
                                                          "TERM",
                                                          "COLORTERM",
                                                          "COLUMNS",
                                                          "LINES",
                                                          "LS_COLORS",
                                                          "LS_OPTIONS",
                                                          "WINDOWID",
                                                          "DISPLAY",
                                                          "XAUTHORITY",
                                                          "TMUX",
                                                          "STY",
                                                          "PS1",
                                                          "PS2",
                                                          "PROMPT_COMMAND",
                                                          "TMPDIR",
                                                          "WAYLAND_DISPLAY",
                                                          "GPG_TTY",
                                                          "INVOCATION_ID",
                                                          "JOURNAL_STREAM",
                                                          "CUDA_VISIBLE_DEVICES",
                                                          "ROCR_VISIBLE_DEVICES",
                                                          "HIP_VISIBLE_DEVICES"};
constexpr std::array<std::string_view, 8> kLocalPrefixes = {"SSH_",  "XDG_",  "DBUS_",  "BASH_FUNC_",
                                                            "TERM_", "TMUX_", "GNOME_", "KDE_"};
constexpr std::string_view kOfOneRank[] = {"SIRTAKI_JOIN_SECRET",
                                           "SIRTAKI_JOB_RANK",
                                           "SIRTAKI_JOB_SIZE",
                                           "SIRTAKI_JOB_LOCAL_RANK",
                                           "SIRTAKI_JOB_LOCAL_SIZE",
                                           "SIRTAKI_JOB_RENDEZVOUS",
                                           "SIRTAKI_JOB_SECRET_FD",
                                           "SIRTAKI_JOB_SECRET_FILE",
                                           "SIRTAKI_JOB_TERMINAL",
                                           "RANK",
                                           "WORLD_SIZE",
                                           "LOCAL_RANK",
                                           "LOCAL_WORLD_SIZE",
                                           "GROUP_RANK",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "HOROVOD_RANK",
                                           "HOROVOD_SIZE",
                                           "HOROVOD_LOCAL_RANK",
                                           "HOROVOD_LOCAL_SIZE",
                                           "HOROVOD_CROSS_RANK",
                                           "HOROVOD_CROSS_SIZE",
                                           "HOROVOD_HOSTNAME"};

}  // namespace

bool describes_rank(std::string_view name) {
  return std::find(std::begin(kOfOneRank), std::end(kOfOneRank), name) != std::end(kOfOneRank);
}

bool stays_here(std::string_view name) {
  return describes_rank(name) || name == "SIRTAKI_JOB_HOST_ID" ||
         std::find(kLocalNames.begin(), kLocalNames.end(), name) != kLocalNames.end() ||
         std::any_of(kLocalPrefixes.begin(), kLocalPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

Result<Variables> variables_for_ranks(const Environment& environment, const std::vector<std::string>& wanted,
                                      bool horovod) {
  Environment chosen;
  const bool theirs = horovod && !environment.contains("RANK");
  for (const auto& [name, value] : environment) {
    const bool meets = name == "MASTER_ADDR" || name == "MASTER_PORT";
    if (!stays_here(name) || (theirs && meets)) {
      chosen[name] = value;
    }
  }
  for (const std::string& entry : wanted) {
    const std::size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    if (name.empty()) {
      return invalid_argument("-x " + entry + ": write -x NAME or -x NAME=VALUE");
    }
    if (equals != std::string::npos) {
      chosen[name] = entry.substr(equals + 1);
      continue;
    }
    const auto found = environment.find(name);
    if (found == environment.end()) {
      return invalid_argument("-x " + name + ": this variable is not set here; write -x " + name + "=VALUE");
    }
    chosen[name] = found->second;
  }
  return Variables(chosen.begin(), chosen.end());
}

Variables variables_of_rank(Rank rank, int size, const RankNumbers& numbers, const std::string& host, bool horovod) {
  const std::string job_rank = std::to_string(rank);
  const std::string job_size = std::to_string(size);
  const std::string local_rank = std::to_string(numbers.local_rank);
  const std::string local_size = std::to_string(numbers.local_size);
  const std::string cross_rank = std::to_string(numbers.cross_rank);
  Variables variables = {{"SIRTAKI_JOB_RANK", job_rank},
                         {"SIRTAKI_JOB_SIZE", job_size},
                         {"SIRTAKI_JOB_LOCAL_RANK", local_rank},
                         {"SIRTAKI_JOB_LOCAL_SIZE", local_size}};
  // Not both: a trainer that finds RANK adds gradients that an optimizer of Horovod has added already.
  const Variables more =
      horovod
          ? Variables{{"HOROVOD_RANK", job_rank},         {"HOROVOD_SIZE", job_size},
                      {"HOROVOD_LOCAL_RANK", local_rank}, {"HOROVOD_LOCAL_SIZE", local_size},
                      {"HOROVOD_CROSS_RANK", cross_rank}, {"HOROVOD_CROSS_SIZE", std::to_string(numbers.cross_size)},
                      {"HOROVOD_HOSTNAME", host}}
          : Variables{{"RANK", job_rank},
                      {"WORLD_SIZE", job_size},
                      {"LOCAL_RANK", local_rank},
                      {"LOCAL_WORLD_SIZE", local_size},
                      {"GROUP_RANK", cross_rank}};
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

void put_first(Variables& variables, const std::string& name, const std::string& folder) {
  for (auto& [key, value] : variables) {
    if (key == name) {
      // An empty entry of such a list means the working directory.
      value = value.empty() ? folder : folder + ":" + value;
      return;
    }
  }
  variables.emplace_back(name, folder);
}

}  // namespace sirtaki::launcher
