// RosterTest: a roster and the actions that it has taken, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/control/elastic/roster.h"

namespace sirtaki::control {

inline constexpr StreamId kSteps(1);

// A roster whose processes do as they are told; the connection of slot n is n + 1, unless it dials again.
class RosterTest : public testing::Test {
 protected:
  static RosterOptions options(int start, int min, int max) {
    RosterOptions result;
    result.start = start;
    result.min = min;
    result.max = max;
    return result;
  }
  void hello(int slot, std::uint32_t incarnation = 1) { hello(connection(slot), slot, incarnation); }
  void hello(Connection from, int slot, std::uint32_t incarnation) {
    roster_.on_hello(from, {slot, incarnation}, now_);
    take();
  }
  void regroup(int slot, Regroup message = {}) {
    roster_.on_regroup(connection(slot), message, now_);
    take();
  }
  // All processes of slots 0..size-1 arrive.
  void form_first(int size) {
    for (int slot = 0; slot < size; ++slot) {
      hello(slot);
      regroup(slot);
    }
    ASSERT_EQ(roster_.phase(), Roster::Phase::kRunning);
    for (int slot = 0; slot < size; ++slot) {
      admit(slot);
    }
  }
  // These processes come into the second epoch, for which members 0..2 end the first one.
  void join(const std::vector<int>& slots) {
    for (const int slot : slots) {
      hello(slot);
      regroup(slot);
    }
    for (const int slot : {0, 1, 2}) {
      regroup(slot, {Epoch(1), 1, true, true, {}, {}});
    }
  }
  void admit(int slot, bool admits = true) {
    roster_.on_admission(connection(slot), {admits}, now_);
    take();
  }
  void leave(int slot) {
    roster_.on_leaving(connection(slot), now_);
    take();
  }
  void lose(int slot) {
    roster_.on_lost(connection(slot), {Code::kPeerLost, "rank " + std::to_string(slot) + " was killed"}, now_);
    take();
  }
  void again(int slot, std::uint64_t step = 5, StepState state = StepState::kWorking) {
    regroup(slot, {roster_.epoch(), 0, true, true, {}, {{kSteps, 0, step, state}}});
  }
  void tick(Duration later) {
    now_ += later;
    roster_.on_tick(now_);
    take();
  }
  void take() {
    for (Roster::Action& action : roster_.take_actions()) {
      actions_.push_back(std::move(action));
    }
  }
  static Connection connection(int slot) { return Connection(static_cast<std::uint64_t>(slot) + 1); }

  template <class Notice>
  const Notice* last_notice(int slot) const {
    const Notice* found = nullptr;
    for (const Roster::Action& action : actions_) {
      const auto* send = std::get_if<Roster::Send>(&action);
      if (send != nullptr && send->to == connection(slot) && std::holds_alternative<Notice>(send->notice)) {
        found = &std::get<Notice>(send->notice);
      }
    }
    return found;
  }
  std::vector<int> parted() const {
    std::vector<int> result;
    for (const Roster::Action& action : actions_) {
      if (const auto* part = std::get_if<Roster::Part>(&action)) {
        result.push_back(static_cast<int>(part->connection.value) - 1);
      }
    }
    return result;
  }
  std::string end() const {
    const auto* end = actions_.empty() ? nullptr : std::get_if<Roster::End>(&actions_.back());
    return end == nullptr ? "" : end->why.to_string();
  }
  std::vector<int> slots() const {  // of the last epoch, by rank
    std::vector<int> result;
    for (const Roster::Action& action : actions_) {
      if (const auto* form = std::get_if<Roster::Form>(&action)) {
        result.clear();
        for (const Connection member : form->members) {
          result.push_back(static_cast<int>(member.value) - 1);
        }
      }
    }
    return result;
  }

  Roster roster_{options(3, 1, 4)};
  TimePoint now_{std::chrono::seconds(1)};
  std::vector<Roster::Action> actions_;
};

}  // namespace sirtaki::control
