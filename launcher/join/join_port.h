// JoinPort: the port of an elastic job at which hosts join it.
//
// Hosts prove the secret as ranks do (runtime/rendezvous/link/auth_listener.h); strangers cost a bounded amount, and
// never reach the job. Owned by Job. A thread of its own runs the handshakes, and calls the events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "launcher/agent/channel.h"
#include "launcher/join/host_offer.h"
#include "runtime/base/status.h"
#include "runtime/rendezvous/auth/secret.h"

namespace sirtaki::launcher {

// A host that has proved the secret. Its agent speaks next.
struct JoiningHost {
  HostOffer offer;
  ChannelEnds ends;
  std::string peer;  // its address, and that of this machine, on the connection between them
  std::string here;
};

class JoinPort {
 public:
  struct Events {
    std::function<void(const std::shared_ptr<JoiningHost>&)> on_host;
    std::function<void(const std::string&)> on_warning;  // about hosts and strangers that are refused
  };
  // Listens on all addresses of this machine. `port` 0: any free one.
  static Result<std::unique_ptr<JoinPort>> open(std::uint16_t port, const rendezvous::Secret& secret, Events events);
  // Ends the thread; no event fires from then on.
  ~JoinPort();

  std::uint16_t port() const;

 private:
  struct State;
  explicit JoinPort(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sirtaki::launcher
