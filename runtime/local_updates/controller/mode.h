// Modes of a training with local updates, and the events that change them.
//
//   kSync     gradients are averaged in every step
//   kLocal    ranks make several steps alone between merges
//   kDrain    merges in flight are finished, and parameters end equal
//   kReform   waits for the members of the next epoch
// The interval controller and the engine change modes by events that happen on all ranks. Pure functions: the next mode
// follows from the present one and the event alone. runtime/rendezvous handles membership, merge.h merges.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/status.h"

namespace sirtaki::local_updates {

enum class Mode : std::uint8_t { kJoining, kSync, kLocal, kDrain, kReform, kFailed };
std::string_view mode_name(Mode mode);

enum class Event : std::uint8_t {
  kJoined,          // all members of the first epoch have arrived
  kWantLocal,       // the controller found local steps worth it
  kWantSync,        // the controller wants synchronous steps
  kWantDrain,       // the program needs a checkpoint, an evaluation, or ends
  kDrained,         // a drain is complete: parameters are equal on all ranks
  kSteppedInSync,   // a step with averaged gradients is complete
  kTagAborted,      // a merge was given up on all ranks
  kMembersChanged,  // a rank was lost, left, or wants to join
  kReformed,        // the next epoch has its members
  kFailed,          // nothing can continue
};
std::string_view event_name(Event event);

// A mode with its target, if it is kDrain, kReform, or kSync with new members on the way to kLocal.
struct ModeState {
  Mode mode = Mode::kJoining;
  Mode then = Mode::kSync;  // kSync or kLocal
  bool reforming = false;   // the drain after kReform: new members take part, and a step in kSync follows

  friend bool operator==(const ModeState&, const ModeState&) = default;
};

// Returns the state after the event. kBug: the event cannot happen in that mode.
//   kJoining -kJoined-> kSync;  kSync -kWantLocal-> kLocal;  kLocal -kWantSync-> kDrain -kDrained-> kSync
//   kLocal -kWantDrain-> kDrain -kDrained-> kLocal;  any -kTagAborted-> the same
//   any -kMembersChanged-> kReform -kReformed-> kDrain -kDrained-> kSync -kSteppedInSync-> the previous mode
//   any -kFailed-> kFailed, which every event except the impossible ones keeps
Result<ModeState> next_mode(ModeState state, Event event);

}  // namespace sirtaki::local_updates
