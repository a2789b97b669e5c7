// dial: a Dialing that the calling thread waits for. The first half of Client::connect, and how a rank reaches the one
// that relays for it.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/loop.h"
#include "runtime/base/task.h"
#include "runtime/rendezvous/auth/handshake.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/sockets.h"

namespace sirtaki::rendezvous {

inline constexpr Duration kCancelSlice = std::chrono::milliseconds(50);  // between two looks at `cancelled`

struct DialOptions {
  std::vector<std::string> addresses;  // "host:port" or "[v6]:port", tried in turn
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

// Any thread but the loop's. `cancelled` (may be empty) is polled at least ten times a second; when it says true the
// result is kAborted.
Result<Dialed> dial(AsioLoop& loop, const DialOptions& options, MoveFunction<bool()>& cancelled);

}  // namespace sirtaki::rendezvous
