// Loads NCCL at run time, so that one build runs with and without it.
//
// A copy that the process has loaded already takes precedence: two copies, such as one of a framework and one of the
// system, would each have threads and memory of their own. The library is never closed.
// Thread-safe. Not for making communicators (communicator.h).
#pragma once

#include <string>

#include "runtime/base/status.h"
#include "runtime/net/device/nccl/nccl_api.h"

namespace sirtaki::net::nccl {

struct LoadOptions {
  std::string path;                   // the library if the process has none; empty: search `name`
  std::string name = "libnccl.so.2";  // name for the dynamic linker
};

struct Library {
  Api api{};
  int version = 0;
  std::string from;  // "the process", or the path of the library
};

// Returns the functions of NCCL. kUnavailable if no library is found, kUnsupported if it is too old or lacks a
// function; the text names the libraries that were tried.
Result<Library> load(const LoadOptions& options);

// Formats a version number: 22809 is "2.28.9".
std::string version_text(int version);

}  // namespace sirtaki::net::nccl
