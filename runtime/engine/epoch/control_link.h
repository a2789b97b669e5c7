// ControlLink: the interface by which an engine sends messages to the coordinator.
//
// Implementations: the rendezvous client of a session, a coordinator on the same loop for one rank, and the simulator.
// Messages arrive in the order of send(). Threads: the loop.
#pragma once

#include "runtime/base/types.h"
#include "runtime/control/messages.h"

namespace sirtaki::engine {

// Time for which the loss of a peer, seen by the data plane, waits for its cause, which the control plane knows.
inline constexpr Duration kCauseGrace = std::chrono::milliseconds(400);

// Time for the word of the coordinator of an elastic job, beyond the silence after which it takes a rank for lost.
inline constexpr Duration kWordGrace = std::chrono::seconds(2);

class ControlLink {
 public:
  virtual ~ControlLink() = default;
  virtual void send(control::MemberMessage message) = 0;
  // Returns the time for which the loss of a peer waits for its cause. In an elastic job only the coordinator decides
  // that a rank is lost, so its word is waited for.
  virtual Duration cause_grace() const { return kCauseGrace; }
};

}  // namespace sirtaki::engine
