// Modes of a training with local updates, and what leads from one to another.
//
// For: the interval controller and the engine, which moves when something has happened on all ranks. In kSync gradients
// are averaged in every step; in kLocal ranks make several steps of their own between merges; kDrain finishes what is
// in flight and ends with equal parameters; kReform waits for the next epoch's members. Pure functions: the next mode
// follows from the present one and the event alone.
// Not for: membership (runtime/rendezvous) and the merges themselves.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/status.h"

namespace sirtaki::local_updates {

enum class Mode : std::uint8_t { kJoining, kSync, kLocal, kDrain, kReform, kFailed };
std::string_view mode_name(Mode mode);

enum class Event : std::uint8_t {
  kJoined,          // all members of the first epoch are there
  kWantLocal,       // the controller: local steps are worth it
  kWantSync,        // the controller: they are not, or not now
  kWantDrain,       // the program: a checkpoint, an evaluation, the end
  kDrained,         // the controller, at the end of a drain: parameters are equal on all ranks
  kSteppedInSync,   // a step with averaged gradients is complete
  kTagAborted,      // a merge was given up on all ranks
  kMembersChanged,  // a rank was lost, left, or wants to join
  kReformed,        // the next epoch has its members
  kFailed,          // nothing can go on
};
std::string_view event_name(Event event);

// Of kDrain and kReform, and of kSync between members that have just joined and kLocal: where it goes from here.
struct ModeState {
  Mode mode = Mode::kJoining;
  Mode then = Mode::kSync;  // kSync or kLocal
  bool reforming = false;   // the drain after kReform: joiners come in, and a step in kSync follows

  friend bool operator==(const ModeState&, const ModeState&) = default;
};

// The state after the event. kBug: the event cannot happen in that mode.
//   kJoining -kJoined-> kSync;  kSync -kWantLocal-> kLocal;  kLocal -kWantSync-> kDrain -kDrained-> kSync
//   kLocal -kWantDrain-> kDrain -kDrained-> kLocal;  any -kTagAborted-> the same
//   any -kMembersChanged-> kReform -kReformed-> kDrain -kDrained-> kSync -kSteppedInSync-> the mode before
//   any -kFailed-> kFailed, where every event but those ends
Result<ModeState> next_mode(ModeState state, Event event);

}  // namespace sirtaki::local_updates
