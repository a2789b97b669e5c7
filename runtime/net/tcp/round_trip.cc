#include "runtime/net/tcp/round_trip.h"

// The structure of the C library, which Asio includes, lacks the field, and both headers cannot be included together.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

namespace sirtaki::net {

Duration shortest_round_trip(int socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  const bool told = ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
                    size >= offsetof(tcp_info, tcpi_min_rtt) + sizeof(info.tcpi_min_rtt) &&
                    info.tcpi_min_rtt != UINT32_MAX;
  return told ? std::chrono::microseconds(info.tcpi_min_rtt) : Duration(0);
}

}  // namespace sirtaki::net
