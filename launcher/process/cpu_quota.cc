#include "launcher/process/cpu_quota.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace sirtaki::launcher {

namespace {

// A mounted hierarchy of cgroups that includes this process.
struct Hierarchy {
  bool unified = false;  // cgroup version 2
  std::string root;      // root of the mount within the hierarchy
  std::string mount;     // mount point in the file system
};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool lists(std::string_view list, std::string_view word) {
  const std::string padded = "," + std::string(list) + ",";
  return padded.find("," + std::string(word) + ",") != std::string::npos;
}

// Reads lines such as "36 25 0:32 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct".
std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) {
      continue;
    }
    std::istringstream front(line.substr(0, dash));
    std::istringstream back(line.substr(dash + 3));
    std::string skipped;
    std::string type;
    std::string options;
    Hierarchy one;
    front >> skipped >> skipped >> skipped >> one.root >> one.mount;
    back >> type >> skipped >> options;
    one.unified = type == "cgroup2";
    if (one.unified || (type == "cgroup" && lists(options, "cpu"))) {
      found.push_back(one);
    }
  }
  return found;
}

// Returns the cgroup of this process in that hierarchy from "4:cpu,cpuacct:/docker/12ab" or "0::/user.slice".
std::optional<std::string> own_cgroup(const std::string& root, bool unified) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (unified ? controllers.empty() : lists(controllers, "cpu")) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// Returns the quota of one folder in cores; nullopt: no limit there.
std::optional<double> quota_of(const std::string& folder, bool unified) {
  double quota = -1;
  double period = 0;
  if (unified) {
    std::istringstream line(first_line(folder + "/cpu.max"));  // "max 100000", "50000 100000"
    line >> quota >> period;
    if (!line) {
      return std::nullopt;
    }
  } else {
    std::istringstream(first_line(folder + "/cpu.cfs_quota_us")) >> quota;
    std::istringstream(first_line(folder + "/cpu.cfs_period_us")) >> period;
  }
  return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

}  // namespace

std::optional<int> quota_cores(const std::string& root) {
  std::optional<double> least;
  for (const Hierarchy& one : hierarchies(root)) {
    std::string path = own_cgroup(root, one.unified).value_or("/");
    // A container sees its own cgroup as the root of the mount, under the name that the cgroup has on the host.
    if (one.root != "/" && path.starts_with(one.root)) {
      path = path.substr(one.root.size());
    }
    std::filesystem::path below = std::filesystem::path(path).relative_path().lexically_normal();
    while (true) {
      const auto quota = quota_of((std::filesystem::path(root + one.mount) / below).string(), one.unified);
      if (quota) {
        least = std::min(least.value_or(*quota), *quota);
      }
      if (below.empty() || below == ".") {
        break;
      }
      below = below.parent_path();
    }
  }
  return least ? std::optional(std::max(1, static_cast<int>(std::min(*least, 65536.0)))) : std::nullopt;
}

}  // namespace sirtaki::launcher
