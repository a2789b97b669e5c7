// dial: connects to a server and proves the job's secret, on the calling thread. The first half of Client::connect, and
// how a rank reaches the one that relays for it.
//
// Retries with growing pauses until the deadline, because the server may start later than its clients. Only what
// cannot get better ends it at once: a bad address, a wrong secret, another protocol version.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/rendezvous/handshake.h"
#include "runtime/rendezvous/secret.h"
#include "runtime/rendezvous/sockets.h"

namespace sirtaki::rendezvous {

inline constexpr Duration kCancelSlice = std::chrono::milliseconds(50);  // between two looks at `cancelled`

struct DialOptions {
  std::string server;                // "host:port" or "[v6]:port"
  std::vector<std::string> or_else;  // further addresses of it, tried in turn
  std::string who = "the rendezvous server";
  std::string fix = "check that the launcher or rank 0 runs, its address and port, and firewalls between";
  Purpose purpose = Purpose::kControl;
  std::vector<std::byte> hello;  // of the handshake
  Secret secret;
  Duration connect_timeout{};
  Duration handshake_timeout{};  // of one attempt
  Duration silence_timeout{};    // for set_control_options
};

struct Dialed {
  UniqueFd fd;  // non-blocking
  SocketAddress local;
  std::vector<std::byte> following;  // bytes received behind the handshake
};

// `clock` is asked for the time only. `cancelled` (may be empty) is polled at least ten times a second; when it says
// true the result is kAborted.
Result<Dialed> dial(const DialOptions& options, const Loop& clock, MoveFunction<bool()>& cancelled);

}  // namespace sirtaki::rendezvous
