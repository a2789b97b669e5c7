// Finding NCCL at run time, so that one build runs with and without it.
//
// A copy that the process has already comes first: two copies, such as a framework's and the system's, would each have
// threads and memory of their own. What is found is never closed.
// Threads: any. Not for: making communicators (communicator.h).
#pragma once

#include <string>

#include "runtime/base/status.h"
#include "runtime/net/device/nccl/nccl_api.h"

namespace sirtaki::net::nccl {

struct LoadOptions {
  std::string path;                   // a library to use where the process has none; empty: the system's
  std::string name = "libnccl.so.2";  // as the process and the system know it
};

struct Library {
  Api api{};
  int version = 0;
  std::string from;  // "the process", or what was loaded
};

// kUnavailable where there is none, kUnsupported where it is too old or lacks a function; the texts say what was tried.
Result<Library> load(const LoadOptions& options);

// 22809 -> "2.28.9".
std::string version_text(int version);

}  // namespace sirtaki::net::nccl
