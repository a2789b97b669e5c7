// join_job(): connects this host to the port of an elastic job, and runs its agent there (sirtakirun --join).
#pragma once

#include <string>

#include "runtime/base/config/config_load.h"
#include "runtime/base/types.h"

namespace sirtaki::launcher {

struct JoinerOptions {
  std::string address;      // "host:port" or "[v6]:port" of the launcher
  std::string secret_file;  // see join_secret()
  int slots = 1;
  Duration patience = std::chrono::seconds(30);  // time until the secret file is there and the launcher is reached
  std::string option_lines;                      // see ConfigSources::command_line
};

// Returns the exit code of the process: see run_joined_agent(); 1 if the job cannot be reached or refuses this host, 2
// if the options are wrong, 128 and the number of a signal that has ended the wait for the job. If the launcher is
// lost, tries to reach its successor for elastic.hub_wait. Call it before any thread exists. Signals that end a process
// stay blocked from there on.
int join_job(const JoinerOptions& options, const Environment& environment);

}  // namespace sirtaki::launcher
