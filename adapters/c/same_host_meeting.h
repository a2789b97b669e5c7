// Meeting file: leads the ranks of one host to rank 0 if their launcher gives them no port. Only their user can read
// it.
//
// Rank 0 writes the file, named after the job, and removes it when its process ends; the other ranks read it. The
// process id and start time in the file show whether a killed process left it behind; such a file is ignored. Any
// thread; calls block on the file system.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/config/job_env.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/rendezvous/auth/secret.h"

namespace sirtaki::adapters {

struct Meeting {
  std::string endpoint;  // "127.0.0.1:41213"
  rendezvous::Secret secret;
};

// Returns the path of the meeting file, the same for all ranks of a job on this host: it contains the job id of the
// launcher, else the id of the parent process. Creates `directory` with mode 0700 if missing, and refuses a directory
// that other users could write to.
Result<std::string> meeting_path(const std::string& directory, const JobEnv& job);
// Returns the default directory, one for each user, below /tmp.
std::string meeting_directory();

// Writes the file with mode 0600; replaces a file left by a dead process.
Status write_meeting(const std::string& path, const Meeting& meeting);
// Waits at most `timeout` for the file and returns its content. Polls `interrupted` (may be empty) at least ten times a
// second; true ends the wait with kAborted.
Result<Meeting> await_meeting(const std::string& path, Duration timeout, const std::function<bool()>& interrupted);

}  // namespace sirtaki::adapters
