#include "launcher/environment.h"

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
constexpr std::array<std::string_view, 5> kPlaceInJob = {"SIRTAKI_JOB_RANK", "SIRTAKI_JOB_SIZE",
                                                         "SIRTAKI_JOB_RENDEZVOUS", "SIRTAKI_JOB_SECRET_FD",
                                                         "SIRTAKI_JOB_SECRET_FILE"};

}  // namespace

bool is_place_in_job(std::string_view name) {
  return std::find(kPlaceInJob.begin(), kPlaceInJob.end(), name) != kPlaceInJob.end();
}

bool stays_here(std::string_view name) {
  return is_place_in_job(name) || name == "SIRTAKI_JOB_HOST_ID" ||
         std::find(kLocalNames.begin(), kLocalNames.end(), name) != kLocalNames.end() ||
         std::any_of(kLocalPrefixes.begin(), kLocalPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

Result<Variables> variables_for_ranks(const Environment& environment, const std::vector<std::string>& wanted) {
  Environment chosen;
  for (const auto& [name, value] : environment) {
    if (!stays_here(name)) {
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
