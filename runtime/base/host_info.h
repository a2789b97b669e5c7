// Identity of the host of a rank, and the processor time that this process has used.
//
// Reads /proc, /sys and /dev/shm, and blocks on nothing else. Any thread.
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

// Returns the identity of this host. A `host_id` (option job.host_id) that is not empty replaces the detected one.
HostInfo host_info(const std::string& host_id = "");

// Returns the processor time of all threads of this process since it began.
Duration processor_time();

}  // namespace sirtaki
