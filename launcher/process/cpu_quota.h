// CPU quota: the part of the machine's cores that cgroups leave to this process (`docker run --cpus`, Kubernetes,
// systemd).
//
// Reads /proc and /sys/fs/cgroup, both versions of cgroups. Any thread. Sets of cores are not covered: see the affinity
// mask.
#pragma once

#include <optional>
#include <string>

namespace sirtaki::launcher {

// Returns the smallest quota of this process's cgroup and those above it in whole cores, rounded down, at least 1;
// nullopt when there is none. `root` stands in front of all paths, for tests.
std::optional<int> quota_cores(const std::string& root = "");

}  // namespace sirtaki::launcher
