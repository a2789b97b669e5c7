// Spawn: starts one process, with pipes and in a session of its own, and says exactly why a start fails.
//
// The only place of the launcher that forks. Any thread, one at a time; blocks until the program runs or has failed to
// start. All other descriptors of this process are closed in the child (close-on-exec).
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki::launcher {

// A file descriptor that closes itself; -1 means none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct SpawnSpec {
  std::vector<std::string> argv;  // argv[0]: looked up in PATH of `env` unless it holds a slash
  std::vector<std::string> env;   // "NAME=VALUE"
  std::string cwd;                // empty: the directory of this process
  bool pipe_stdin = false;        // else /dev/null
  int inherit_fd = -1;            // stays open in the child under the same number
  rlim_t open_files = 0;          // soft limit of the child's descriptors; 0: the limit of this process
  std::vector<int> ignored;       // signals that the child ignores from the start; all others get their default action
  int death_signal = 0;           // sent to the child when the forking thread of this process dies; 0: no signal
};

struct ChildProcess {
  pid_t pid = -1;
  FileDescriptor in;  // set only with pipe_stdin
  FileDescriptor out;
  FileDescriptor err;
};

struct SpawnError {
  int exit_code = 1;  // 127 not found, 126 found but not executable, 1 any other cause
  std::string text;   // message for the user, with the remedy
};

// Starts a program as the leader of its own session. A returned child runs the program already (exec succeeded).
Result<ChildProcess> spawn(const SpawnSpec& spec, SpawnError* error);

// Returns the path of `command` for execve(): itself if it holds a slash, else the first executable file in
// `path_variable`; empty if there is none.
std::string find_program(const std::string& command, const std::string& path_variable);

}  // namespace sirtaki::launcher
