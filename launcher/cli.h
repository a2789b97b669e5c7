// Command line of sirtakirun: its own options, those of the runtime's table (runtime/base/config/config.h), and where
// the user's command begins. Parsing only; starts nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/process/ssh.h"
#include "runtime/base/config/option_value.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

struct RunOptions {
  std::vector<std::string> command;
  std::optional<int> np;
  std::string hosts;     // -H
  std::string hostfile;  // --hostfile
  SshOptions ssh;
  std::string remote_path;         // empty: the path of this program
  std::vector<std::string> env;    // -x NAME or NAME=VALUE
  std::string rendezvous_address;  // told to the ranks in place of the address found
  std::string output_dir;
  bool tag_output = true;
  bool timestamps = false;
  std::string colour = "auto";  // auto, always, never
  bool verbose = false;
  bool horovod = false;  // Python programs find Sirtaki under Horovod's name
  bool check = false;
  std::string config_file;
  std::string option_lines;  // TOML lines of the runtime's options given as flags
  Duration start_timeout = std::chrono::seconds(30);
  Duration failure_grace = std::chrono::seconds(2);  // for the survivors of a failure to say what they saw
  Duration term_grace = std::chrono::seconds(30);    // between SIGTERM and SIGKILL where a rank handles SIGTERM
};

struct CommandLine {
  RunOptions run;
  // Set when there is nothing to run: text for standard output (help, version).
  std::optional<std::string> print;
};

// kInvalidArgument says what is wrong and names the nearest valid option.
Result<CommandLine> parse_command_line(const std::vector<std::string>& arguments);

}  // namespace sirtaki::launcher
