// World, part: the invariants of departures, of epochs and of the end of a job, and the key of a state.
#include <algorithm>

#include "tests/unit/control/elastic/roster_world.h"

namespace sirtaki::control {

bool World::begins_with(const Log& log, const Log& start) {
  return log.size() >= start.size() && std::equal(start.begin(), start.end(), log.begin());
}

void World::on_part(const Roster::Part& part) {
  const int slot = slot_of(part.connection);
  if (slot < 0) {
    return expect(false, "leaving: a process parts that the hub has lost");
  }
  Process& p = processes_[static_cast<std::size_t>(slot)];
  expect(p.told, "leaving: a process parts that does not have to leave");
  p.open = false;
  if (runs(p)) {
    p.down.emplace_back(Closed{Code::kShutdown});
  }
}

// Members that have to leave and can do so do not come into another epoch.
void World::check_leavers(const Roster::Form& form) {
  bool told = false;
  bool state_stays = false;
  for (std::size_t rank = 0; rank < form.members.size(); ++rank) {
    const Process& p = processes_[static_cast<std::size_t>(std::max(slot_of(form.members[rank]), 0))];
    const Seat& seat = form.notice.seats[rank];
    told = told || (p.told && seat.old_rank >= 0);
    state_stays = state_stays || (!p.told && seat.has_state);
  }
  expect(!told || !state_stays || static_cast<int>(form.members.size()) <= options_.min,
         "leaving: a member stays that has to leave and could");
}

void World::on_form(const Roster::Form& form) {
  expect(form.epoch.value == epochs_.size() + 1, "V2: the number of an epoch does not grow by one");
  expect(!end_, "an epoch forms after the end of the job");
  expect(static_cast<int>(form.members.size()) >= options_.min, "an epoch has too few members");
  check_leavers(form);
  EpochRecord epoch;
  Rank rank = 0;
  for (const Connection member : form.members) {
    const int slot = slot_of(member);
    if (slot < 0) {
      expect(false, "V2: an epoch has a member that the hub has lost");
      continue;
    }
    Place& place = epoch.places.at(static_cast<std::size_t>(slot));
    expect(!std::exchange(place.member, true), "V2: a process is a member twice");
    place.rank = rank++;
    if (member == form.members.front()) {
      const Process& p = processes_[static_cast<std::size_t>(slot)];
      epoch.log = p.log;
      if (const StreamVerdicts& verdict = form.notice.streams;
          !verdict.empty() && verdict.front().committed > p.log.size()) {
        epoch.log.push_back(p.epoch);
      }
      expect(p.has_state || form.epoch == Epoch(1), "V7: rank 0 has no state");
    }
  }
  expect(begins_with(epoch.log, job_log_), "V1: a committed step is lost");
  job_log_ = epoch.log;
  epochs_.push_back(std::move(epoch));
}

std::string World::check_end() const {
  if (!end_) {
    return "V6: the job hangs";
  }
  auto whole = std::ranges::count_if(processes_, [](const Process& p) { return !p.hit; });
  // One of two processes that cannot exchange data cannot go on, and is given up. If half of all would have to go, the
  // job may end.
  const auto at = [](int slot) { return static_cast<std::size_t>(slot); };
  const auto parted = [&](const Process& p) { return p.apart >= 0 && !processes_[at(p.apart)].hit; };
  whole -= std::ranges::count_if(processes_, [&](const Process& p) { return parted(p) && !p.hit; }) / 2;
  int members = 0;
  int parted_members = 0;
  for (std::size_t slot = 0; !epochs_.empty() && slot < processes_.size(); ++slot) {
    const auto& places = epochs_.back().places;
    const int partner = processes_[slot].apart;
    members += static_cast<int>(places[slot].member);
    parted_members += static_cast<int>(places[slot].member && partner >= 0 && places[at(partner)].member);
  }
  whole = parted_members > 0 && parted_members >= members ? 0 : whole;
  if (end_->code() != Code::kShutdown) {
    const bool state_lives = std::ranges::any_of(processes_, [](const Process& p) { return !p.hit && p.has_state; });
    return whole < options_.min || !state_lives
               ? ""
               : "V6: the job ends although enough processes live: " + end_->to_string();
  }
  const bool trained = std::ranges::any_of(processes_, [this](const Process& p) { return p.log.size() == steps_; });
  if (!trained && !all_left_) {
    return "V6: the job ends in order before the end of the program, and not all have left";
  }
  for (std::size_t slot = 0; slot < processes_.size(); ++slot) {
    const Process& p = processes_[slot];
    const std::string name = "process " + std::to_string(slot);
    if (!p.dead && !p.hung && p.mode != Mode::kEnded) {
      return "V6: " + name + " hangs";
    }
    // Members that no fault has hit have all steps. The last one may be missing if a rank was lost in it when another
    // had come to the end of the program: no epoch follows. None follows either if those that have left were all whom
    // the hub still had.
    const bool member = !all_left_ && !epochs_.empty() && epochs_.back().places[slot].member;
    if (member && !p.hit && (p.log.size() + 1 < steps_ || !begins_with(p.log, job_log_))) {
      return "V1: " + name + " has not committed all steps";
    }
    for (std::size_t step = job_log_.size(); member && !p.hit && step < p.log.size(); ++step) {
      if (p.log[step] != epochs_.size()) {
        return "V3: " + name + " has committed a step in an earlier epoch than the others";
      }
    }
  }
  return "";
}

// Returns whether some process may still exchange something with others in this epoch.
bool World::in_use(std::uint32_t epoch) const {
  return std::ranges::any_of(processes_, [&](const Process& p) {
    return (p.mode == Mode::kRunning && p.epoch == epoch) || std::ranges::any_of(p.down, [&](const Down& down) {
             const auto* notice = std::get_if<RosterNotice>(&down);
             const auto* formed = notice == nullptr ? nullptr : std::get_if<EpochFormed>(notice);
             return formed != nullptr && formed->epoch == Epoch(epoch);
           });
  });
}

std::string World::key() const {
  std::string text = roster_.describe() + (end_ ? code_name(end_->code()).data() : "") + "\n";
  const auto number = [&text](std::uint64_t n) { text += static_cast<char>('0' + n); };
  const auto message = [&text](const std::vector<std::byte>& bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (const Process& p : processes_) {
    const bool flags[] = {p.dead, p.hung, p.hit, p.told, p.open, p.complete, p.has_state};
    text += "p";
    std::ranges::for_each(flags, number);
    if (p.dead && p.up.empty()) {
      continue;
    }
    number(static_cast<std::uint64_t>(p.mode));
    number(static_cast<std::uint64_t>(p.apart + 1));
    number(p.epoch);
    number(p.base_change);
    number(p.change);
    text += "l";
    std::ranges::for_each(p.log, number);
    for (const Up& up : p.up) {
      const auto* report = std::get_if<RosterReport>(&up);
      text += report == nullptr ? "L" : "R";
      message(report == nullptr ? std::vector<std::byte>() : encode(*report));
    }
    for (const Down& down : p.down) {
      const auto* notice = std::get_if<RosterNotice>(&down);
      text += notice == nullptr ? "C" : "N";
      number(notice == nullptr ? static_cast<std::uint64_t>(std::get<Closed>(down).why) : notice->index());
      message(notice == nullptr ? std::vector<std::byte>() : encode(*notice));
    }
  }
  for (std::uint32_t epoch = 1; epoch <= epochs_.size(); ++epoch) {
    if (!in_use(epoch)) {
      continue;
    }
    text += "e";
    for (const Place& place : record(epoch).places) {
      number(static_cast<std::uint64_t>(place.member));
      number(place.begun);
      std::ranges::for_each(place.complete, number);
    }
  }
  return text;
}

}  // namespace sirtaki::control
