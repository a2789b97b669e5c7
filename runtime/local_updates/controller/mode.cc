#include "runtime/local_updates/controller/mode.h"

#include <string>

namespace sirtaki::local_updates {
namespace {

Status impossible(ModeState state, Event event) {
  return bug("'" + std::string(event_name(event)) + "' cannot happen in mode " + std::string(mode_name(state.mode)));
}

ModeState stable(Mode mode) {
  return {mode, mode, false};
}

// The target of a drain stays the same while members change.
Mode resumed(ModeState state) {
  switch (state.mode) {
    case Mode::kSync:
    case Mode::kDrain:
    case Mode::kReform:
      return state.then;
    case Mode::kLocal:
      return Mode::kLocal;
    case Mode::kJoining:
    case Mode::kFailed:
      break;
  }
  return Mode::kSync;
}

Result<ModeState> after_want(ModeState state, Event event) {
  const bool drain = event == Event::kWantDrain;
  const Mode wanted = event == Event::kWantLocal ? Mode::kLocal : Mode::kSync;
  switch (state.mode) {
    case Mode::kSync:
      return drain ? state : stable(wanted);
    case Mode::kLocal:
      if (event == Event::kWantLocal) {
        return state;
      }
      return ModeState{Mode::kDrain, drain ? Mode::kLocal : Mode::kSync, false};
    case Mode::kDrain:
    case Mode::kReform:
      // A request for another drain adds nothing, and the target mode is decided with equal parameters.
      if (event != Event::kWantLocal) {
        state.then = drain ? state.then : Mode::kSync;
        return state;
      }
      break;
    case Mode::kJoining:
    case Mode::kFailed:
      break;
  }
  return impossible(state, event);
}

}  // namespace

std::string_view mode_name(Mode mode) {
  switch (mode) {
    case Mode::kJoining:
      return "joining";
    case Mode::kSync:
      return "sync";
    case Mode::kLocal:
      return "local";
    case Mode::kDrain:
      return "drain";
    case Mode::kReform:
      return "reform";
    case Mode::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string_view event_name(Event event) {
  switch (event) {
    case Event::kJoined:
      return "joined";
    case Event::kWantLocal:
      return "local steps wanted";
    case Event::kWantSync:
      return "synchronous steps wanted";
    case Event::kWantDrain:
      return "drain wanted";
    case Event::kDrained:
      return "drained";
    case Event::kSteppedInSync:
      return "a synchronous step";
    case Event::kTagAborted:
      return "merge given up";
    case Event::kMembersChanged:
      return "members changed";
    case Event::kReformed:
      return "reformed";
    case Event::kFailed:
      return "failed";
  }
  return "unknown";
}

Result<ModeState> next_mode(ModeState state, Event event) {
  if (event == Event::kFailed) {
    return stable(Mode::kFailed);
  }
  if (state.mode == Mode::kFailed) {
    return impossible(state, event);
  }
  switch (event) {
    case Event::kJoined:
      return state.mode == Mode::kJoining ? Result<ModeState>(stable(Mode::kSync)) : impossible(state, event);
    case Event::kWantLocal:
    case Event::kWantSync:
    case Event::kWantDrain:
      return after_want(state, event);
    case Event::kTagAborted:
      return state;
    case Event::kMembersChanged:
      return ModeState{Mode::kReform, resumed(state), false};
    case Event::kReformed:
      return state.mode == Mode::kReform ? Result<ModeState>(ModeState{Mode::kDrain, state.then, true})
                                         : impossible(state, event);
    case Event::kDrained:
      if (state.mode != Mode::kDrain) {
        return impossible(state, event);
      }
      return state.reforming ? ModeState{Mode::kSync, state.then, false} : stable(state.then);
    case Event::kSteppedInSync:
      return state.mode == Mode::kSync ? Result<ModeState>(stable(state.then)) : impossible(state, event);
    case Event::kFailed:
      break;
  }
  return impossible(state, event);
}

}  // namespace sirtaki::local_updates
