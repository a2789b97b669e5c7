#include "launcher/agent/host_facts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>

#include "launcher/process/cpu_quota.h"
#include "launcher/process/spawn.h"
#include "runtime/base/host_info.h"

namespace sirtaki::launcher {

namespace {

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

AddressList resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.empty() ? nullptr : port.c_str(), &hints, &found) != 0) {
    found = nullptr;
  }
  return {found, freeaddrinfo};
}

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  if (getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return text;
}

socklen_t length_of(const sockaddr* address) {
  return address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Returns the addresses of all interfaces that are up; loopback is optional.
std::vector<NetworkAddress> all_addresses(bool with_loopback) {
  std::vector<NetworkAddress> out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return out;
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool usable = entry->ifa_addr != nullptr && (entry->ifa_flags & IFF_UP) != 0 &&
                        (entry->ifa_addr->sa_family == AF_INET || entry->ifa_addr->sa_family == AF_INET6);
    if (!usable || (!with_loopback && (entry->ifa_flags & IFF_LOOPBACK) != 0)) {
      continue;
    }
    out.push_back({entry->ifa_name, numeric(entry->ifa_addr, length_of(entry->ifa_addr))});
  }
  return out;
}

std::string without_user(const std::string& name) {
  const std::size_t at = name.rfind('@');
  return at == std::string::npos ? name : name.substr(at + 1);
}

// Ends a connection, and waits until the server has ended it, too: it has then said what it says of a visitor that
// proves nothing. A server that does not is left after a second.
void end_connection(int fd) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  shutdown(fd, SHUT_WR);
  pollfd entry{fd, POLLIN, 0};
  char ignored[512];
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0 || poll(&entry, 1, static_cast<int>(left.count())) <= 0 ||
        read(fd, ignored, sizeof(ignored)) <= 0) {
      return;
    }
  }
}

// Connects to `target` within `left`; returns the error, empty on success.
std::string try_connect(const addrinfo& target, std::chrono::milliseconds left) {
  const FileDescriptor fd(socket(target.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) {
    return strerror(errno);
  }
  if (connect(fd.get(), target.ai_addr, target.ai_addrlen) == 0) {
    end_connection(fd.get());
    return {};
  }
  if (errno != EINPROGRESS) {
    return strerror(errno);
  }
  pollfd entry{fd.get(), POLLOUT, 0};
  if (poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(1, left.count()))) <= 0) {
    return "no answer in time";
  }
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    return strerror(error);
  }
  end_connection(fd.get());
  return {};
}

std::string probe_one(const std::string& endpoint, std::chrono::milliseconds left) {
  const std::size_t colon = endpoint.rfind(':');
  if (colon == std::string::npos) {
    return "no port";
  }
  std::string host = endpoint.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  const AddressList list = resolve(host, endpoint.substr(colon + 1), AI_NUMERICSERV);
  if (!list) {
    return "the name cannot be resolved";
  }
  return try_connect(*list, left);
}

}  // namespace

std::string library_version() {
  return SIRTAKI_VERSION;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  const int cores = known ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, std::min(cores, quota_cores().value_or(cores)));
}

std::string simd_name() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    return "avx512";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return "avx2";
  }
  return __builtin_cpu_supports("sse4.1") ? "sse4" : "baseline";
#elif defined(__aarch64__)
  return "neon";
#else
  return "baseline";
#endif
}

std::vector<NetworkAddress> network_addresses() {
  return all_addresses(false);
}

Hello describe_host(const Environment& environment) {
  Hello hello;
  hello.version = library_version();
  const auto own_id = environment.find("SIRTAKI_JOB_HOST_ID");
  const HostInfo info = host_info(own_id == environment.end() ? "" : own_id->second);
  hello.hostname = info.hostname;
  hello.host_id = info.host_id;
  hello.cores = usable_cores();
  hello.simd = simd_name();
  hello.addresses = network_addresses();
  // "client-address client-port server-address server-port": the launcher's address in the view of sshd.
  if (const auto found = environment.find("SSH_CONNECTION"); found != environment.end()) {
    hello.launcher_address = found->second.substr(0, found->second.find(' '));
  }
  return hello;
}

bool is_this_host(const std::string& name) {
  const std::string host = without_user(name);
  if (host == "localhost" || host == host_info().hostname) {
    return true;
  }
  const AddressList list = resolve(host, "", 0);
  std::set<std::string> own;
  for (const NetworkAddress& entry : all_addresses(true)) {
    own.insert(entry.address);
  }
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (is_loopback(entry->ai_addr) || own.contains(numeric(entry->ai_addr, entry->ai_addrlen))) {
      return true;
    }
  }
  return false;
}

std::string address_towards(const std::string& host) {
  // connect() on a datagram socket sends nothing; it only makes the kernel choose route and source address.
  const AddressList list = resolve(without_user(host), "9", AI_NUMERICSERV);
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    const FileDescriptor fd(socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd.get() < 0 || connect(fd.get(), entry->ai_addr, entry->ai_addrlen) != 0) {
      continue;
    }
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    auto* address = reinterpret_cast<sockaddr*>(&local);
    if (getsockname(fd.get(), address, &length) == 0) {
      return numeric(address, length);
    }
  }
  return {};
}

std::string route_to(const std::string& host) {
  return is_this_host(host) ? kRouteHere : address_towards(host);
}

std::string make_endpoint(const std::string& address, std::uint16_t port) {
  const bool v6 = address.find(':') != std::string::npos && address.front() != '[';
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

Probed probe_endpoints(const Probe& probe) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(probe.timeout_ms);
  Probed result;
  for (std::size_t i = 0; i < probe.endpoints.size(); ++i) {
    // Each address gets a share of the remaining time, so that a silent first address leaves time for the others.
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const std::string error = probe_one(probe.endpoints[i], left / static_cast<int>(probe.endpoints.size() - i));
    if (error.empty()) {
      result.reached = static_cast<std::int32_t>(i);
      return result;
    }
    result.errors.push_back(probe.endpoints[i] + ": " + error);
  }
  return result;
}

}  // namespace sirtaki::launcher
