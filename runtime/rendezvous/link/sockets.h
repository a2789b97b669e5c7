// Helpers for socket addresses, descriptors and timeouts. Any thread.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::rendezvous {

// Longer timeouts are cut to this, so that sums with a point in time never overflow.
inline constexpr Duration kLongestTimeout = std::chrono::hours(24 * 365);

// Owns a file descriptor and closes it.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void reset();  // closes
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// Returns the text of the system for an errno value: "connection refused".
std::string errno_text(int error);
// Returns a text such as "1.5 s".
std::string seconds_text(Duration duration);

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
// Parses "host:port", "10.0.0.3:4000" or "[fd00::3]:4000".
Result<HostPort> parse_host_port(const std::string& text);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::uint16_t port() const;
  // Returns "10.0.0.3" or "fd00::3"; an IPv4 address mapped into IPv6 is shown as IPv4.
  std::string host() const;
  // Returns "10.0.0.3:4000" or "[fd00::3]:4000".
  std::string text() const;
  bool operator==(const SocketAddress& other) const;
};
SocketAddress local_address_of(int fd);
SocketAddress remote_address_of(int fd);

struct AddrInfoFree {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using AddrInfo = std::unique_ptr<addrinfo, AddrInfoFree>;
// Calls getaddrinfo() for TCP with `flags` and sets `error` to its result. Blocks as long as the resolver does.
AddrInfo look_up(const HostPort& where, int flags, int& error);

// Disables the Nagle delay, and makes the connection fail if sent bytes stay unacknowledged for `timeout`; zero: for as
// long as the system allows.
void set_control_options(int fd, Duration timeout);

}  // namespace sirtaki::rendezvous
