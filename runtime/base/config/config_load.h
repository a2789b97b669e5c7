// Loading a Config: defaults < TOML file < environment < command line < program.
//
// Every value keeps its origin. An unknown key or variable, or a bad value, is an error that names the place, the
// accepted values and the nearest valid name. Variables of Horovod that have a counterpart are read, and SIRTAKI_* wins
// over them; other HOROVOD_* are ignored. Only config_load.cc and job_env.cc read the environment of the process.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/config/config.h"
#include "runtime/base/status.h"

namespace sirtaki {

using Environment = std::map<std::string, std::string, std::less<>>;

// Variables that are not options.
inline constexpr std::string_view kConfigVariable = "SIRTAKI_CONFIG";            // path of the TOML file
inline constexpr std::string_view kConfigTextVariable = "SIRTAKI_CONFIG_TEXT";   // its content, from the launcher
inline constexpr std::string_view kCommandLineVariable = "SIRTAKI_CLI_OPTIONS";  // flags of the launcher, as TOML lines
// Set by sirtakirun for programs to read: the index of a rank on its host, the number of ranks there, and "1" if
// standard error of the launcher is a terminal (unset otherwise).
inline constexpr std::string_view kLocalRankVariable = "SIRTAKI_JOB_LOCAL_RANK";
inline constexpr std::string_view kLocalSizeVariable = "SIRTAKI_JOB_LOCAL_SIZE";
inline constexpr std::string_view kTerminalVariable = "SIRTAKI_JOB_TERMINAL";
// Has the secret with which hosts join a job (launcher/join/join_secret.h).
inline constexpr std::string_view kJoinSecretVariable = "SIRTAKI_JOIN_SECRET";

// Returns whether sirtakirun gives this option to each rank by itself and takes no flag for it.
bool set_by_launcher(std::string_view name);

struct ConfigSources {
  Environment environment;
  // Path (--config-file), else kConfigVariable. `file_text`, else kConfigTextVariable, replaces the content of the
  // file, which is read otherwise.
  std::string file_path;
  std::optional<std::string> file_text;
  std::string command_line;  // TOML lines (option_line); kCommandLineVariable comes before it
  std::string program;       // TOML lines
};

// Returns the variables of this process; all other members are empty.
ConfigSources process_sources();
Environment process_environment();

// Returns the value that means the same as `text` for the option or the variable of Horovod named in `row`; nullopt:
// the default.
std::optional<std::string> from_horovod(const OptionInfo& row, const std::string& text);

Result<std::shared_ptr<const Config>> load_config(const ConfigSources& sources);

// Returns `name = "value"` and a line end, for ConfigSources::command_line and ::program.
std::string option_line(std::string_view name, std::string_view value);

}  // namespace sirtaki
