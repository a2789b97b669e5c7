// ControlLink: how an engine speaks to the coordinator. Implemented by the session (rendezvous), by size 1 (a
// coordinator on the same loop) and by the simulator. Loop thread; messages arrive in order.
#pragma once

#include "runtime/control/messages.h"

namespace sirtaki::engine {

class ControlLink {
 public:
  virtual ~ControlLink() = default;
  virtual void send(control::MemberMessage message) = 0;
};

}  // namespace sirtaki::engine
