// ssh: builds the command that starts an agent on another host, and explains its failures. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki::launcher {

struct SshOptions {
  std::string program = "ssh";
  int port = 0;  // 0: the default of ssh
  std::string identity_file;
  std::vector<std::string> extra;  // further arguments for ssh; they override ours
  int connect_timeout_s = 10;
};

// Returns the argv of ssh. The remote command line holds only the path of the agent; all other data goes over the pipe.
std::vector<std::string> ssh_command(const SshOptions& options, const std::string& host,
                                     const std::string& remote_path);

// Splits an option text like a shell without expansions: quotes and backslashes only.
Result<std::vector<std::string>> split_words(const std::string& text);

// Explains the missing answer of an agent on `host` in one sentence with the likely cause and the remedy. `messages` is
// the standard error of ssh, `junk` the bytes that arrived in place of the agent's hello.
Status explain_ssh_failure(const std::string& host, const std::string& remote_path, int wait_status,
                           const std::string& messages, const std::string& junk);

}  // namespace sirtaki::launcher
