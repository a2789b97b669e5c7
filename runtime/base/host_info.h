// What identifies the machine a rank runs on, and what this process has used of it.
//
// Reads /proc, /sys and /dev/shm; blocks for no longer than that takes. Any thread.
#pragma once

#include <string>

#include "runtime/base/types.h"

namespace sirtaki {

struct HostInfo {
  std::string hostname;
  // Equal for processes that share memory and network: boot id, network namespace and the device of /dev/shm, so that
  // every container or namespace counts as a host of its own.
  std::string host_id;
};

// `host_id` (the option job.host_id) replaces the one found unless it is empty.
HostInfo host_info(const std::string& host_id = "");

// Returns the processor time of all threads of this process since it began.
Duration processor_time();

}  // namespace sirtaki
