// Processes: lists the descendants of this process from /proc, and ends them all.
//
// Used by the agent, its supervisor and the launcher. Each of them is a "child subreaper": orphans among its
// descendants become its own children, so no process of a rank can escape. Only descendants are ever signalled. Reads
// /proc; no thread of its own.
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
  char state = '?';  // state letter of /proc: 'Z' is a zombie
};

// Returns the first 64 KiB of a file under /proc; empty when the process is gone.
std::string read_proc_file(const std::string& path);
// Parses a line of /proc/PID/stat; nullopt when it is malformed. The command name inside may hold any bytes.
std::optional<ProcessInfo> parse_stat(std::string_view line);

// Returns all live descendants of this process without zombies, and without `spared` and their descendants.
std::vector<ProcessInfo> descendants(const std::set<pid_t>& spared = {});
// Returns the descendants that belong to session `session`.
std::vector<ProcessInfo> session_members(pid_t session);

// Makes orphans among the descendants children of this process.
void become_subreaper();
// Returns whether this process ignores the signal.
bool is_ignored(int signal_number);
// Sends SIGKILL to every present descendant; returns their number.
int kill_round(const std::set<pid_t>& spared = {});
// Sends SIGSTOP or SIGCONT to every descendant, including those that are created meanwhile.
void stop_or_continue_descendants(int signal_number);
// Repeats kill_round() until no descendant is left or `limit` has passed. Reaps every child, so use it only at the end
// of this process. Returns the number of descendants left.
int kill_descendants(Duration limit, const std::set<pid_t>& spared = {});

// Returns for example "exit code 3" or "killed by signal 9 (Killed)".
std::string describe_wait_status(int wait_status);
// Returns the exit code of a shell in this case: the code, or 128 + signal.
int exit_code_of(int wait_status);

}  // namespace sirtaki::launcher
