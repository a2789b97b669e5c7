// ssh: the command that starts an agent on another host, and what its failures mean. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki::launcher {

struct SshOptions {
  std::string program = "ssh";
  int port = 0;  // 0: ssh's own choice
  std::string identity_file;
  std::vector<std::string> extra;  // further arguments for ssh; these win over ours
  int connect_timeout_s = 10;
};

// argv of ssh. Nothing but the path of the agent is on the remote command line; everything else goes over the pipe.
std::vector<std::string> ssh_command(const SshOptions& options, const std::string& host,
                                     const std::string& remote_path);

// Splits an option text as a shell would, without expansions: quotes and backslashes only.
Result<std::vector<std::string>> split_words(const std::string& text);

// Why no agent answered on `host`: one sentence with the likely cause and the fix. `messages` is what ssh wrote to its
// stderr, `junk` what arrived in place of the agent's greeting.
Status explain_ssh_failure(const std::string& host, const std::string& remote_path, int wait_status,
                           const std::string& messages, const std::string& junk);

}  // namespace sirtaki::launcher
