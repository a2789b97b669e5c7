#include "tests/unit/control/elastic/roster_world.h"

#include <algorithm>

namespace sirtaki::control {

std::string World::Move::text() const {
  static const char* const kNames[] = {"starts",       "is read by the hub",  "reads", "completes", "passes",
                                       "cannot go on", "deadline of the hub", "fault"};
  return std::to_string(process) + " " + kNames[static_cast<int>(kind)] +
         (kind == Kind::kFault ? " " + std::to_string(static_cast<int>(fault)) : "");
}

World::World(RosterOptions options, int steps, Order order)
    : options_(options), steps_(static_cast<std::size_t>(steps)), order_(order), roster_(options) {
  for (int slot = options.start; slot < kProcesses; ++slot) {
    roster_.on_expected(slot, true, now_);
  }
  for (int slot = 0; slot < options.start; ++slot) {
    connect(processes_[static_cast<std::size_t>(slot)], slot);
    deliver_up(slot);
  }
}

// ---- moves ----

bool World::may_complete(const Process& p) const {
  return !p.complete && std::ranges::all_of(record(p.epoch).places, [&](const Place& place) {
    return !place.member || place.begun > p.log.size();
  });
}

bool World::may_pass(const Process& p) const {
  const EpochRecord& epoch = record(p.epoch);
  return p.complete && std::ranges::all_of(epoch.places, [&](const Place& place) {
           return !place.member || epoch.log.size() + place.complete.size() > p.log.size();
         });
}

std::vector<World::Move> World::moves() const {
  std::vector<Move> result;
  std::vector<Move> unable;
  for (int i = 0; i < kProcesses; ++i) {
    const Process& p = processes_[static_cast<std::size_t>(i)];
    if (p.mode == Mode::kUnborn && !p.dead) {
      result.push_back({Kind::kStart, i});
    }
    if (!p.up.empty()) {
      result.push_back({Kind::kSend, i});
    }
    if (runs(p) && !p.down.empty()) {
      result.push_back({Kind::kReceive, i});
    }
    if (!runs(p) || p.mode != Mode::kRunning) {
      continue;
    }
    if (unreachable_of(i) >= 0) {
      unable.push_back({Kind::kUnable, i});
      continue;
    }
    if (may_complete(p)) {
      result.push_back({Kind::kComplete, i});
    }
    if (may_pass(p)) {
      result.push_back({Kind::kPass, i});
    }
  }
  // That lasts longer than all that is under way.
  if (order_ == Order::kAny || result.empty()) {
    result.insert(result.end(), unable.begin(), unable.end());
  }
  // A deadline comes only where nothing else does, so that it hides no other reason for which a job would hang.
  const bool hangs = std::ranges::any_of(processes_, [](const Process& p) { return p.hung; });
  if (result.empty() && hangs && roster_.next_tick()) {
    result.push_back({Kind::kTick});
  }
  const auto first = std::ranges::find_if(result, [this](const Move& move) { return commutes(move); });
  return order_ == Order::kAny || first == result.end() ? result : std::vector<Move>{*first};
}

// Moves of others neither prevent such a move nor change its effect, and it does not change theirs. The hub reads at
// once, because the losses of kStop, kDelay and kCut overtake what was sent. A process reads at once unless others may
// go on meanwhile.
bool World::commutes(const Move& move) const {
  const Process& p = processes_[static_cast<std::size_t>(move.process)];
  const auto* notice = p.down.empty() ? nullptr : std::get_if<RosterNotice>(&p.down.front());
  const bool races = notice != nullptr &&
                     (std::holds_alternative<EpochEnds>(*notice) || std::holds_alternative<ChangeWanted>(*notice));
  return move.kind == Kind::kSend || (move.kind == Kind::kReceive && notice != nullptr && !races) ||
         (move.kind == Kind::kComplete && !races);
}

// Returns whether the hub waits for this process to get the state.
bool World::may_hang(int slot) const {
  const Process& p = processes_[static_cast<std::size_t>(slot)];
  const bool founder = epochs_.empty() || epochs_.front().places[static_cast<std::size_t>(slot)].member;
  return runs(p) && p.open && !p.has_state && !founder;
}

bool World::may_part(int slot) const {
  const auto at = static_cast<std::size_t>(slot);
  return std::ranges::all_of(std::array{at, (at + 1) % kProcesses}, [this](std::size_t i) {
    const Process& p = processes_[i];
    return runs(p) && p.open && p.mode != Mode::kEnded && p.apart < 0;
  });
}

Rank World::unreachable_of(int slot) const {
  const Process& p = processes_[static_cast<std::size_t>(slot)];
  return p.apart < 0 ? -1 : record(p.epoch).places[static_cast<std::size_t>(p.apart)].rank;
}

std::vector<World::Move> World::faults() const {
  std::vector<Move> result;
  const bool first = std::ranges::none_of(processes_, [](const Process& p) { return p.hit || p.apart >= 0; });
  for (int i = 0; i < kProcesses; ++i) {
    const Process& p = processes_[static_cast<std::size_t>(i)];
    if (order_ == Order::kReduced && first && i > 0 && i < options_.start) {
      continue;  // members are alike until one is hit; of the first pair, as of others, the youngest is given up
    }
    if (p.dead || p.mode == Mode::kEnded) {
      continue;
    }
    for (const Fault fault : kFaults) {
      // Where the hub reads at once, kKill is the same as kStop; kCut is kDelay with a process that reads at once.
      const bool repeats = order_ == Order::kReduced && (fault == Fault::kCut || (fault == Fault::kKill && p.open));
      const bool possible = fault == Fault::kHang    ? may_hang(i)
                            : fault == Fault::kApart ? may_part(i)
                                                     : p.open || fault == Fault::kKill;
      const bool warned = fault == Fault::kNotice && p.mode != Mode::kRunning;
      if (!repeats && possible && !warned) {
        result.push_back({Kind::kFault, i, fault});
      }
    }
  }
  return result;
}

void World::make(const Move& move) {
  const auto at = static_cast<std::size_t>(move.process);
  Process& p = processes_[at];
  switch (move.kind) {
    case Kind::kStart:
      connect(p, move.process);
      break;
    case Kind::kSend:
      deliver_up(move.process);
      break;
    case Kind::kReceive:
      receive(move.process);
      break;
    case Kind::kComplete:
      p.complete = true;
      record(p.epoch).places.at(at).complete.push_back(p.change);
      break;
    case Kind::kPass:
      pass(move.process);
      break;
    case Kind::kUnable:
      freeze(move.process, unreachable_of(move.process));
      break;
    case Kind::kTick:
      now_ = *roster_.next_tick();
      roster_.on_tick(now_);
      break;
    case Kind::kFault:
      p.hit = p.hit || move.fault != Fault::kApart;  // only the one that is given up for it counts as hit
      hit(move.process, move.fault);
      break;
  }
  act();
}

void World::hit(int slot, Fault fault) {
  Process& p = processes_[static_cast<std::size_t>(slot)];
  const bool connected = p.open;
  switch (fault) {
    case Fault::kKill:
    case Fault::kStop:
      p.dead = true;
      p.down.clear();
      if (!connected) {
        roster_.on_expected(slot, false, now_);
        break;
      }
      if (fault == Fault::kKill) {
        p.up.emplace_back(Lost{});
      } else {
        p.up.clear();
        p.open = false;
        roster_.on_lost(p.connection, {Code::kPeerLost, "killed"}, now_);
        roster_.on_expected(slot, false, now_);
      }
      break;
    case Fault::kDelay:
      p.open = false;
      p.down.emplace_back(Closed{});
      roster_.on_lost(p.connection, {Code::kPeerLost, "silent"}, now_);
      break;
    case Fault::kCut:
      p.open = false;
      p.up.clear();
      p.down.clear();
      p.down.emplace_back(Closed{});
      roster_.on_lost(p.connection, {Code::kPeerLost, "cut"}, now_);
      break;
    case Fault::kHang:
      p.hung = true;
      p.down.clear();
      break;
    case Fault::kNotice:
      p.up.emplace_back(RosterReport(MustLeave{}));
      break;
    case Fault::kApart:
      p.apart = (slot + 1) % kProcesses;
      processes_[static_cast<std::size_t>(p.apart)].apart = slot;
      break;
  }
}

// ---- processes ----

void World::connect(Process& p, int slot) {
  p.connection = Connection(++connections_);
  p.open = true;
  p.mode = Mode::kOutside;
  p.up.clear();
  p.down.clear();
  p.complete = p.told = false;
  reunite(p);
  const std::uint32_t incarnation = 1;
  p.up.emplace_back(RosterReport(Hello{{slot, incarnation}}));
  p.up.emplace_back(RosterReport(Regroup{Epoch(p.epoch), 0, p.has_state, p.has_state, {}, {}}));
}

void World::reunite(Process& p) {
  if (p.apart >= 0) {
    processes_[static_cast<std::size_t>(std::exchange(p.apart, -1))].apart = -1;
  }
}

StreamReports World::place_of(int slot, StepState state) const {
  const Process& p = processes_[static_cast<std::size_t>(slot)];
  const bool names_last = slot % 2 == 1 && state != StepState::kComplete && !p.log.empty() && p.log.back() == p.epoch;
  return {{kWorldStream, 0, names_last ? p.log.size() - 1 : p.log.size(), names_last ? StepState::kPassed : state}};
}

void World::commit(Process& p) {
  p.log.push_back(p.epoch);
  p.complete = false;
}

void World::take_state(Process& p) {
  p.has_state = true;
  p.up.emplace_back(RosterReport(Admission{true}));
}

void World::pass(int slot) {
  Process& p = processes_[static_cast<std::size_t>(slot)];
  EpochRecord& epoch = record(p.epoch);
  const std::size_t at = p.log.size() - epoch.log.size();
  std::uint32_t change = p.base_change;
  for (const Place& place : epoch.places) {
    change = place.member ? std::max(change, place.complete.at(at)) : change;
  }
  commit(p);
  if (!p.has_state) {
    take_state(p);
  }
  if (change > p.base_change || p.log.size() == steps_) {
    end_epoch(slot, change);
  } else {
    epoch.places.at(static_cast<std::size_t>(slot)).begun = p.log.size() + 1;
  }
}

// Leaves the epoch behind a committed or void step: for the next one, or for good.
void World::end_epoch(int slot, std::uint32_t change) {
  Process& p = processes_[static_cast<std::size_t>(slot)];
  if (p.log.size() == steps_) {
    p.mode = Mode::kEnded;
    p.up.emplace_back(RosterReport(Departure{true}));
    return;
  }
  p.mode = Mode::kOutside;
  const StreamReports streams = place_of(slot, StepState::kIdle);
  p.up.emplace_back(RosterReport(Regroup{Epoch(p.epoch), change, p.has_state, p.has_state, {}, streams}));
}

void World::receive(int slot) {
  Process& p = processes_[static_cast<std::size_t>(slot)];
  const Down down = p.down.front();
  p.down.erase(p.down.begin());
  if (p.mode == Mode::kEnded) {
    return;
  }
  if (const auto* closed = std::get_if<Closed>(&down)) {
    if (closed->why == Code::kPeerLost) {
      connect(p, slot);  // given up: comes back
    } else {
      expect(closed->why == Code::kShutdown, "a process is refused for another reason than the end of the job");
      p.mode = Mode::kEnded;
      p.open = false;
    }
    return;
  }
  std::visit([&](const auto& notice) { read(slot, notice); }, std::get<RosterNotice>(down));
}

void World::read(int slot, const EpochEnds& notice) {
  Process& p = processes_[static_cast<std::size_t>(slot)];
  if (p.mode == Mode::kRunning && notice.epoch == Epoch(p.epoch)) {
    freeze(slot, slot % 2 == 1 ? unreachable_of(slot) : -1);  // an even slot has not noticed it yet
  }
}

// Leaves the epoch in the middle of a step.
void World::freeze(int slot, Rank unreachable) {
  Process& p = processes_[static_cast<std::size_t>(slot)];
  p.mode = Mode::kOutside;
  Regroup regroup{Epoch(p.epoch), 0,  p.has_state,
                  p.has_state,    {}, place_of(slot, p.complete ? StepState::kComplete : StepState::kWorking)};
  if (unreachable >= 0) {
    regroup.unreachable.push_back(unreachable);
  }
  p.up.emplace_back(RosterReport(std::move(regroup)));
}

// Ends the step of a process that has frozen.
void World::settle(Process& p, const StreamVerdicts& verdict) {
  const std::uint64_t committed = verdict.empty() ? 0 : verdict.front().committed;
  if (committed > p.log.size()) {
    expect(p.complete && committed == p.log.size() + 1, "V1: a rank without the results of a step has to commit it");
    commit(p);
  }
  p.complete = false;
}

void World::read(int slot, const ChangeWanted& notice) {
  Process& p = processes_[static_cast<std::size_t>(slot)];
  p.change = std::max(p.change, notice.number);
}

void World::read(int slot, const EpochFormed& notice) {
  Process& p = processes_[static_cast<std::size_t>(slot)];
  expect(p.mode == Mode::kOutside, "an epoch forms with a rank that does not wait for it");
  const Seat& seat = notice.seats.at(static_cast<std::size_t>(notice.rank));
  if (seat.old_rank >= 0) {
    settle(p, notice.streams);
  }
  expect(notice.epoch.value > p.epoch, "V2: the number of an epoch does not grow");
  EpochRecord& epoch = record(notice.epoch.value);
  if (seat.has_state) {
    expect(p.log == epoch.log, "V4: members with state differ");
  } else {
    p.log = epoch.log;  // from the peers
  }
  p.mode = Mode::kRunning;
  p.has_state = seat.has_state;
  p.complete = false;
  p.epoch = notice.epoch.value;
  p.change = p.base_change = notice.change;
  if (p.log.size() == steps_) {
    return end_epoch(slot, 0);  // the verdict has committed the last step
  }
  if (p.has_state && seat.old_rank < 0) {
    take_state(p);  // a member of the first epoch
  }
  epoch.places.at(static_cast<std::size_t>(slot)).begun = p.log.size() + 1;
}

void World::read(int slot, const JobEnds& /*notice*/) {
  Process& p = processes_[static_cast<std::size_t>(slot)];
  if (p.mode == Mode::kOutside) {
    p.mode = Mode::kEnded;
    p.up.emplace_back(RosterReport(Departure{}));
  }
}

// ---- hub ----

void World::deliver_up(int slot) {
  Process& p = processes_[static_cast<std::size_t>(slot)];
  const Up up = p.up.front();
  p.up.erase(p.up.begin());
  if (std::holds_alternative<Lost>(up)) {
    if (p.open) {
      p.open = false;
      roster_.on_lost(p.connection, {Code::kPeerLost, "killed"}, now_);
    }
    roster_.on_expected(slot, false, now_);
    return;
  }
  const RosterReport& report = std::get<RosterReport>(up);
  if (const auto* hello = std::get_if<Hello>(&report); hello != nullptr && p.open) {
    roster_.on_hello(p.connection, hello->id, now_);
  } else if (const auto* regroup = std::get_if<Regroup>(&report)) {
    roster_.on_regroup(p.connection, *regroup, now_);
  } else if (const auto* admission = std::get_if<Admission>(&report)) {
    roster_.on_admission(p.connection, *admission, now_);
  } else if (std::holds_alternative<MustLeave>(report)) {
    p.told = p.open;
    roster_.on_leaving(p.connection, now_);
  } else if (const auto* departure = std::get_if<Departure>(&report)) {
    roster_.on_departure(p.connection, *departure, now_);
    if (!std::exchange(p.open, false)) {
      roster_.on_expected(slot, false, now_);  // the hub had given it up, and nobody comes in its place
    }
  }
}

int World::slot_of(Connection connection) const {
  for (int i = 0; i < kProcesses; ++i) {
    const Process& p = processes_[static_cast<std::size_t>(i)];
    if (p.open && p.connection == connection) {
      return i;
    }
  }
  return -1;
}

void World::act() {
  bool parting = false;  // of members that the present actions have not said the consequence of
  for (const Roster::Action& action : roster_.take_actions()) {
    expect(!parting || !std::holds_alternative<Roster::Close>(action),
           "leaving: a loss comes between a parting and its end");
    const bool ends = std::holds_alternative<Roster::Send>(action) || std::holds_alternative<Roster::End>(action);
    parting = std::holds_alternative<Roster::Part>(action) || (parting && ends);
    if (const auto* send = std::get_if<Roster::Send>(&action)) {
      const int slot = slot_of(send->to);
      Process* p = slot < 0 ? nullptr : &processes_[static_cast<std::size_t>(slot)];
      if (p != nullptr && runs(*p)) {
        p->down.emplace_back(send->notice);
      }
    } else if (const auto* close = std::get_if<Roster::Close>(&action)) {
      const int slot = slot_of(close->connection);
      if (slot >= 0) {
        Process& p = processes_[static_cast<std::size_t>(slot)];
        p.open = false;
        p.hit = p.hit || p.apart >= 0;
        reunite(p);  // a loss of the other one, too, would be that of a healthy process
        if (runs(p)) {
          p.down.emplace_back(Closed{close->why.code()});
        }
      }
    } else if (const auto* part = std::get_if<Roster::Part>(&action)) {
      on_part(*part);
    } else if (const auto* form = std::get_if<Roster::Form>(&action)) {
      on_form(*form);
    } else {
      expect(!end_, "the job ends twice");
      all_left_ = parting;
      end_ = std::get<Roster::End>(action).why;
    }
  }
  expect(!parting || all_left_, "leaving: a member parts, and neither an epoch nor the end follows");
  expect(roster_.broken() == 0, "V10: a member lacks results of a step that counts, and comes back as a new process");
}

}  // namespace sirtaki::control
