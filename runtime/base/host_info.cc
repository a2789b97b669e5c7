#include "runtime/base/host_info.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>

namespace sirtaki {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string own_hostname() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) {
    return "unknown";
  }
  return name.data();
}

}  // namespace

HostInfo host_info(const std::string& host_id) {
  HostInfo info;
  info.hostname = own_hostname();
  info.host_id = host_id;
  if (!host_id.empty()) {
    return info;
  }
  struct stat status {};
  std::string boot = first_line("/proc/sys/kernel/random/boot_id");
  if (boot.empty()) {
    boot = info.hostname;  // a sandbox without /proc; the name is the best that is left
  }
  info.host_id = boot;
  info.host_id += ":net" + (::stat("/proc/self/ns/net", &status) == 0 ? std::to_string(status.st_ino) : "?");
  info.host_id += ":shm" + (::stat("/dev/shm", &status) == 0 ? std::to_string(status.st_dev) : "?");
  return info;
}

Duration processor_time() {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::clock()) / CLOCKS_PER_SEC);
}

}  // namespace sirtaki
