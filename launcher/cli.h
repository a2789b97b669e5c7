// Command line of sirtakirun: its own options, the options of the runtime's table (runtime/base/config/config.h), and
// the beginning of the user's command. Parsing only; starts nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/discovery.h"
#include "launcher/process/ssh.h"
#include "runtime/base/config/option_value.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

// Hosts that come to an elastic job by themselves: the port of the job, or the job of this host.
struct JoinOptions {
  std::optional<int> port;  // 0: any free one
  bool hub = false;         // this host has no ranks: all of them run on hosts that join
  std::string address;      // not empty: this host joins the job there
  std::string secret_file;
};

struct RunOptions {
  std::vector<std::string> command;
  std::optional<int> np;
  int spares = 0;        // processes of an elastic job that wait until a rank is lost
  std::string hosts;     // -H
  std::string hostfile;  // --hostfile
  DiscoveryOptions discovery;
  JoinOptions join;
  SshOptions ssh;
  std::string remote_path;         // empty: the path of this program
  std::vector<std::string> env;    // -x NAME or NAME=VALUE
  std::string rendezvous_address;  // given to the ranks in place of the address found
  std::string output_dir;
  bool tag_output = true;
  bool timestamps = false;
  std::string colour = "auto";  // auto, always, never
  bool verbose = false;
  bool horovod = false;  // Python programs find Sirtaki under Horovod's name
  bool check = false;
  std::string config_file;
  std::string option_lines;  // the runtime's options that were given as flags, as lines of TOML
  Duration start_timeout = std::chrono::seconds(30);
  Duration failure_grace = std::chrono::seconds(2);  // time in which the survivors of a failure report its effects
  Duration term_grace = std::chrono::seconds(30);    // between SIGTERM and SIGKILL for ranks that handle SIGTERM
};

struct CommandLine {
  RunOptions run;
  // Text for standard output (help, version); set when there is nothing to run.
  std::optional<std::string> print;
};

// Returns the parsed command line; kInvalidArgument describes the mistake and names the nearest valid option.
Result<CommandLine> parse_command_line(const std::vector<std::string>& arguments);

}  // namespace sirtaki::launcher
