#include "runtime/rendezvous/link/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <system_error>

namespace sirtaki::rendezvous {

void UniqueFd::reset() {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  reset();
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

std::string errno_text(int error) {
  return std::generic_category().message(error);
}

std::string seconds_text(Duration duration) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

Result<HostPort> parse_host_port(const std::string& text) {
  const auto fail = [&text] {
    return invalid_argument("'" + text + "' is not an address; fix: write host:port or [IPv6]:port");
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return fail();
  }
  HostPort out;
  out.host = text.substr(0, colon);
  if (out.host.front() == '[') {
    if (out.host.size() < 3 || out.host.back() != ']') {
      return fail();
    }
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (out.host.find(':') != std::string::npos) {
    return fail();
  }
  const char* begin = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(begin, end, out.port);
  if (error != std::errc() || rest != end || out.port == 0) {
    return fail();
  }
  return out;
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
  if (family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
  return 0;
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, text, sizeof(text));
  } else if (family() == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&v6)) {
      ::inet_ntop(AF_INET, v6.s6_addr + 12, text, sizeof(text));
    } else {
      ::inet_ntop(AF_INET6, &v6, text, sizeof(text));
    }
  }
  return text;
}

std::string SocketAddress::text() const {
  const std::string name = host();
  const bool v6 = name.find(':') != std::string::npos;
  return (v6 ? "[" + name + "]" : name) + ":" + std::to_string(port());
}

bool SocketAddress::operator==(const SocketAddress& other) const {
  return family() == other.family() && port() == other.port() && host() == other.host();
}

SocketAddress local_address_of(int fd) {
  SocketAddress address;
  ::getsockname(fd, address.get(), &address.size);
  return address;
}

SocketAddress remote_address_of(int fd) {
  SocketAddress address;
  ::getpeername(fd, address.get(), &address.size);
  return address;
}

AddrInfo look_up(const HostPort& where, int flags, int& error) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  error = ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &list);
  return AddrInfo(error == 0 ? list : nullptr);
}

void set_control_options(int fd, Duration timeout) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  const std::int64_t least = timeout == Duration::zero() ? 0 : 1;
  const auto user_timeout = static_cast<unsigned int>(std::clamp<std::int64_t>(ms, least, 3600 * 1000));
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof(user_timeout));
}

}  // namespace sirtaki::rendezvous
