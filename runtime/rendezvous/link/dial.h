// dial(): a Dialing whose caller blocks until it is done. Used by Client::connect(), and by a rank to connect to its
// relay.
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

inline constexpr Duration kCancelSlice = std::chrono::milliseconds(50);  // pause between two polls of `cancelled`

struct DialOptions {
  std::vector<std::string> addresses;  // "host:port" or "[v6]:port", tried in turn
  std::string who = "the rendezvous server";
  std::string fix = "check that the launcher or rank 0 runs, its address and port, and firewalls between";
  Purpose purpose = Purpose::kControl;
  std::vector<std::byte> hello;  // identity given in the handshake
  Secret secret;
  Duration connect_timeout{};
  Duration handshake_timeout{};  // limit for one attempt
  Duration silence_timeout{};    // passed to set_control_options()
};

struct Dialed {
  UniqueFd fd;  // non-blocking
  SocketAddress local;
  std::vector<std::byte> following;  // bytes received after the handshake
  Secret session;                    // key of this connection, see Handshake::session_key()
};

// Connects and proves the secret. Polls `cancelled` (may be empty) at least ten times a second; true ends the call with
// kAborted. Any thread but the loop thread.
Result<Dialed> dial(AsioLoop& loop, const DialOptions& options, MoveFunction<bool()>& cancelled);

}  // namespace sirtaki::rendezvous
