// ControlLink: how an engine speaks to the coordinator. Implemented by the session (rendezvous), by size 1 (a
// coordinator on the same loop) and by the simulator. Loop thread; messages arrive in order.
#pragma once

#include "runtime/base/types.h"
#include "runtime/control/messages.h"

namespace sirtaki::engine {

// How long the data plane's "a peer is gone" waits for the control plane, which knows why.
inline constexpr Duration kCauseGrace = std::chrono::milliseconds(400);

class ControlLink {
 public:
  virtual ~ControlLink() = default;
  virtual void send(control::MemberMessage message) = 0;
};

}  // namespace sirtaki::engine
