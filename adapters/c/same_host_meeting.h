// How the ranks of one host find rank 0 when their launcher tells them no port: a file that only their user can read.
//
// Written by rank 0, read by the others, named after the job, removed at the end of rank 0's process. A file left
// behind by a killed process is recognised by its process id and start time and ignored. Any thread; blocks on the file
// system.
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

// The same for all ranks of a job on this host: from the launcher's name for the job, else from the parent process.
// `directory` is made with mode 0700 when it is not there; one that others could write to is refused.
Result<std::string> meeting_path(const std::string& directory, const JobEnv& job);
std::string meeting_directory();  // below /tmp, one a user

// Replaces a file from a dead process; mode 0600.
Status write_meeting(const std::string& path, const Meeting& meeting);
// Waits at most `timeout` for the file. `interrupted` (may be empty) is asked ten times a second or more.
Result<Meeting> await_meeting(const std::string& path, Duration timeout, const std::function<bool()>& interrupted);

}  // namespace sirtaki::adapters
