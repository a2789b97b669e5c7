// Spawn: starting one process with pipes, in its own session, and saying exactly why when that fails.
//
// The one place of the launcher that forks. Any thread, one at a time; blocks until the program runs or cannot.
// Everything else this process has open stays closed in the child (close-on-exec).
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace sirtaki::launcher {

// A file descriptor that closes itself; -1: none.
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
  std::string cwd;                // empty: as it is
  bool pipe_stdin = false;        // else /dev/null
  int inherit_fd = -1;            // stays open in the child under its number
  rlim_t open_files = 0;          // soft limit of the child's descriptors; 0: this process's
  std::vector<int> ignored;       // signals that the child ignores from its beginning; all others do their default
  int death_signal = 0;           // sent to the child when this process (its forking thread) dies; 0: none
};

struct ChildProcess {
  pid_t pid = -1;
  FileDescriptor in;  // only with pipe_stdin
  FileDescriptor out;
  FileDescriptor err;
};

struct SpawnError {
  int exit_code = 1;  // 127 not found, 126 found but not executable, 1 anything else
  std::string text;   // for a person, with the fix
};

// The program runs (exec succeeded) when this returns a child. Leader of its own session.
Result<ChildProcess> spawn(const SpawnSpec& spec, SpawnError* error);

// Path of `command` as the kernel should get it: itself when it holds a slash, else the first executable file in
// `path_variable`. Empty when there is none.
std::string find_program(const std::string& command, const std::string& path_variable);

}  // namespace sirtaki::launcher
