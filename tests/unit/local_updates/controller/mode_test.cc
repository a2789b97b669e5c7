#include "runtime/local_updates/controller/mode.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sirtaki::local_updates {
namespace {

constexpr Mode kJ = Mode::kJoining;
constexpr Mode kS = Mode::kSync;
constexpr Mode kL = Mode::kLocal;
constexpr Mode kD = Mode::kDrain;
constexpr Mode kR = Mode::kReform;
constexpr Mode kF = Mode::kFailed;

TEST(IntervalMode, EveryEventInEveryMode) {
  struct Case {
    ModeState from;
    Event event;
    std::vector<ModeState> to;  // none: it cannot happen
  };
  const std::vector<Case> cases = {
      {{kJ, kS}, Event::kJoined, {{kS, kS}}},
      {{kJ, kS}, Event::kWantLocal, {}},
      {{kJ, kS}, Event::kDrained, {}},
      {{kJ, kS}, Event::kMembersChanged, {{kR, kS}}},
      {{kS, kS}, Event::kWantLocal, {{kL, kL}}},
      {{kS, kS}, Event::kWantSync, {{kS, kS}}},
      {{kS, kS}, Event::kWantDrain, {{kS, kS}}},
      {{kS, kS}, Event::kDrained, {}},
      {{kS, kS}, Event::kSteppedInSync, {{kS, kS}}},
      {{kS, kL}, Event::kSteppedInSync, {{kL, kL}}},
      {{kS, kL}, Event::kWantSync, {{kS, kS}}},
      {{kS, kL}, Event::kMembersChanged, {{kR, kL}}},
      {{kS, kS}, Event::kMembersChanged, {{kR, kS}}},
      {{kL, kL}, Event::kWantLocal, {{kL, kL}}},
      {{kL, kL}, Event::kWantSync, {{kD, kS}}},
      {{kL, kL}, Event::kWantDrain, {{kD, kL}}},
      {{kL, kL}, Event::kTagAborted, {{kL, kL}}},
      {{kL, kL}, Event::kMembersChanged, {{kR, kL}}},
      {{kL, kL}, Event::kSteppedInSync, {}},
      {{kL, kL}, Event::kReformed, {}},
      {{kD, kL}, Event::kDrained, {{kL, kL}}},
      {{kD, kS}, Event::kDrained, {{kS, kS}}},
      {{kD, kL}, Event::kWantSync, {{kD, kS}}},
      {{kD, kL}, Event::kWantDrain, {{kD, kL}}},
      {{kD, kS}, Event::kWantLocal, {}},
      {{kD, kL}, Event::kMembersChanged, {{kR, kL}}},
      {{kR, kL}, Event::kReformed, {{kD, kL, true}}},
      {{kR, kL}, Event::kMembersChanged, {{kR, kL}}},
      {{kR, kL}, Event::kDrained, {}},
      {{kD, kL, true}, Event::kDrained, {{kS, kL}}},
      {{kD, kL, true}, Event::kWantSync, {{kD, kS, true}}},
      {{kD, kL, true}, Event::kMembersChanged, {{kR, kL}}},
      {{kL, kL}, Event::kFailed, {{kF, kF}}},
      {{kF, kF}, Event::kFailed, {{kF, kF}}},
      {{kF, kF}, Event::kMembersChanged, {}},
      {{kF, kF}, Event::kTagAborted, {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(mode_name(c.from.mode)) + " to " + std::string(mode_name(c.from.then)) + ": " +
                 std::string(event_name(c.event)));
    const auto next = next_mode(c.from, c.event);
    ASSERT_EQ(next.ok(), !c.to.empty());
    if (next) {
      EXPECT_EQ(*next, c.to[0]);
    } else {
      EXPECT_EQ(next.status().code(), Code::kBug);
    }
  }
}

TEST(IntervalMode, AChangeOfMembersLeadsBackThroughASynchronousStep) {
  for (const Mode before : {kS, kL}) {
    ModeState state{before, before};
    for (const Event event : {Event::kMembersChanged, Event::kReformed, Event::kDrained, Event::kSteppedInSync}) {
      EXPECT_EQ(state.mode == kL, event == Event::kMembersChanged && before == kL);
      state = next_mode(state, event).value();
    }
    EXPECT_EQ(state, (ModeState{before, before}));
  }
}

}  // namespace
}  // namespace sirtaki::local_updates
