// Descriptors: limits of open files, and files in memory that ranks inherit.
//
// Used by the launcher and the agent, at their start and when they start ranks. Any thread.
#pragma once

#include <sys/resource.h>

#include <string>

#include "launcher/process/spawn.h"
#include "runtime/base/status.h"

namespace sirtaki::launcher {

// Raises the soft limit of open files to the hard one for this process. Returns the former limit, which its children
// should get: programs that use select() break with a higher one.
rlim_t raise_open_files();

// Returns kExhausted with the limit and the remedy if this process may not open `needed` descriptors.
Status check_open_files(std::size_t needed, const std::string& for_what);

// Returns the text of an errno; "Too many open files" comes with the limit and the remedy.
std::string explain_errno(int error);

// Returns a file in memory with `content`, positioned at its start, close-on-exec, readable for this user only. Its
// number is 100 or more if the limit allows, because shells use small numbers.
Result<FileDescriptor> memory_file(const std::string& content);

}  // namespace sirtaki::launcher
