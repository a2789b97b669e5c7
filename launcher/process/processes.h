// Processes: what /proc says about the descendants of this process, and how to end them all.
//
// Used by the agent, its warden and the launcher, each of which is a "child subreaper": whatever their children leave
// behind becomes their own child, so that nothing a rank started can escape the sweep.
// Reads /proc; no thread of its own. Not for processes of other users' jobs: only descendants are ever signalled.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/types.h"

namespace sirtaki::launcher {

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  char state = '?';  // as in /proc: 'Z' is a zombie
};

// The beginning of a small file under /proc, at most 64 KiB; empty when the process is gone.
std::string read_proc_file(const std::string& path);
// One line of /proc/PID/stat; nullopt when it is malformed. The command name inside may hold anything.
std::optional<ProcessInfo> parse_stat(std::string_view line);

// All live descendants of this process, zombies left out. Those in `spared`, and what is below them, do not count.
std::vector<ProcessInfo> descendants(const std::set<pid_t>& spared = {});
// Those of descendants() that belong to the session `session`.
std::vector<ProcessInfo> session_members(pid_t session);

// Makes orphans among the descendants children of this process.
void become_subreaper();
// SIGKILL to every descendant there is now; returns how many there were.
int kill_round(const std::set<pid_t>& spared = {});
// Sends SIGSTOP or SIGCONT to every descendant, also to those that are made meanwhile.
void stop_or_continue_descendants(int signal_number);
// kill_round() until none is left or `limit` has passed, reaping every child on the way: only for the end of this
// process. Returns how many were still there.
int kill_descendants(Duration limit, const std::set<pid_t>& spared = {});

// "exit code 3", "killed by signal 9 (Killed)".
std::string describe_wait_status(int wait_status);
// What a shell would return: the code, or 128 + signal.
int exit_code_of(int wait_status);

}  // namespace sirtaki::launcher
