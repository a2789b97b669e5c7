// Descriptors: how many this process may have, and files of memory that ranks inherit.
//
// Used by the launcher and the agent, at their start and when they start ranks. Any thread.
#pragma once

#include <sys/resource.h>

#include <string>

#include "launcher/process/spawn.h"
#include "runtime/base/status.h"

namespace sirtaki::launcher {

// Raises the soft limit of open files to the hard one for this process; returns the limit there was, which is what the
// processes that it starts should have (programs that use select() break with a higher one).
rlim_t raise_open_files();

// Returns kExhausted with the limit and the remedy when this process may not have `needed` descriptors.
Status check_open_files(std::size_t needed, const std::string& for_what);

// "Too many open files", with the limit and the remedy; other errors by their text.
std::string explain_errno(int error);

// Returns a file in memory with `content`, positioned at its start, close-on-exec, that only this user can open. Where
// the limit allows, its number is 100 or more, so that shells, which use small numbers, leave it alone.
Result<FileDescriptor> memory_file(const std::string& content);

}  // namespace sirtaki::launcher
