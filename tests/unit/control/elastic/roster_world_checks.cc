// World, part: the invariants at the end of a job, and the key of a state.
#include <algorithm>

#include "tests/unit/control/elastic/roster_world.h"

namespace sirtaki::control {

bool World::begins_with(const Log& log, const Log& start) {
  return log.size() >= start.size() && std::equal(start.begin(), start.end(), log.begin());
}

std::string World::check_end() const {
  if (!end_) {
    return "V6: the job hangs";
  }
  const auto whole = std::ranges::count_if(processes_, [](const Process& p) { return !p.hit; });
  if (end_->code() != Code::kShutdown) {
    const bool state_lives = std::ranges::any_of(processes_, [](const Process& p) { return !p.hit && p.has_state; });
    return whole < options_.min || !state_lives
               ? ""
               : "V6: the job ends although enough processes live: " + end_->to_string();
  }
  const bool trained = std::ranges::any_of(processes_, [this](const Process& p) { return p.log.size() == steps_; });
  if (!trained && !all_left_) {
    return "V8: the job ends in order before the end of the program, and not all have left";
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
