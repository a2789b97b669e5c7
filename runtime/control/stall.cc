#include "runtime/control/stall.h"

#include <algorithm>
#include <map>

namespace sirtaki::control {
namespace {

constexpr Duration kAnswerTime = std::chrono::seconds(1);  // for the ranks to answer a Query before a warning

bool same_use(const WaitEntry& a, const WaitEntry& b) {
  return a.kind == b.kind && a.name == b.name && a.use == b.use;
}

std::string describe(const WaitEntry& entry) {
  switch (entry.kind) {
    case WaitKind::kOp:
      return "'" + entry.name + "' (" + entry.what + ")";
    case WaitKind::kStreamOpen:
      return "the opening of stream '" + entry.name + "'";
    case WaitKind::kStreamStep:
      return "step " + std::to_string(entry.use & 0xffffffffU) + " of stream '" + entry.name + "'";
  }
  return entry.name;
}

std::string seconds_to_string(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count()) + " s";
}

}  // namespace

std::string ranks_to_string(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

StallInspector::StallInspector(int size, StallOptions options)
    : options_(options), ranks_(static_cast<std::size_t>(size)) {}

void StallInspector::on_report(Rank from, Waiting report, TimePoint now) {
  RankState& state = ranks_[static_cast<std::size_t>(from)];
  std::vector<Held> held;
  for (const WaitEntry& entry : report.entries) {
    const auto known =
        std::find_if(state.held.begin(), state.held.end(), [&](const Held& h) { return same_use(h.entry, entry); });
    held.push_back(known != state.held.end() ? *known : Held{entry, now, now + options_.stall_warn, false});
  }
  state.held = std::move(held);
  state.report = std::move(report);
}

void StallInspector::on_gone(Rank rank) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  state = RankState{};
  state.gone = true;
}

// False: whether it holds the entry says nothing.
bool StallInspector::takes_part(Rank rank, const WaitEntry& entry) const {
  const RankState& state = ranks_[static_cast<std::size_t>(rank)];
  return !state.gone && !(state.joined && entry.kind == WaitKind::kStreamStep);
}

bool StallInspector::holds(Rank rank, const WaitEntry& entry) const {
  const RankState& state = ranks_[static_cast<std::size_t>(rank)];
  return std::any_of(state.held.begin(), state.held.end(), [&](const Held& h) { return same_use(h.entry, entry); });
}

bool StallInspector::held_by_all(const WaitEntry& entry) const {
  for (Rank r = 0; r < static_cast<Rank>(ranks_.size()); ++r) {
    if (takes_part(r, entry) && !holds(r, entry)) {
      return false;
    }
  }
  return true;
}

bool StallInspector::looks_stuck() const {
  bool any = false;
  for (const RankState& state : ranks_) {
    if (state.gone || state.joined) {
      continue;
    }
    if (!state.report.blocked || state.held.empty()) {
      return false;
    }
    any = true;
    for (const Held& held : state.held) {
      if (held_by_all(held.entry)) {
        return false;  // on its way: the data plane will finish it
      }
    }
  }
  return any;
}

std::string StallInspector::describe_waits() const {
  std::map<std::string, std::vector<Rank>> waits;
  for (Rank r = 0; r < static_cast<Rank>(ranks_.size()); ++r) {
    for (const Held& held : ranks_[static_cast<std::size_t>(r)].held) {
      waits[describe(held.entry)].push_back(r);
    }
  }
  std::string text;
  for (const auto& [what, ranks] : waits) {
    text +=
        (text.empty() ? "" : "; ") + ranks_to_string(ranks) + (ranks.size() == 1 ? " waits for " : " wait for ") + what;
  }
  return text;
}

std::string StallInspector::describe_late(const WaitEntry& entry, Duration age) const {
  std::vector<Rank> waiting;
  std::vector<Rank> missing;
  for (Rank r = 0; r < static_cast<Rank>(ranks_.size()); ++r) {
    if (takes_part(r, entry)) {
      (holds(r, entry) ? waiting : missing).push_back(r);
    }
  }
  std::string text = ranks_to_string(waiting) + (waiting.size() == 1 ? " has" : " have") + " waited " +
                     seconds_to_string(age) + " for " + describe(entry);
  if (missing.empty()) {
    return text + "; every rank has submitted it, so the network is slow or blocked";
  }
  return text + "; " + ranks_to_string(missing) + (missing.size() == 1 ? " is alive but has" : " are alive but have") +
         " not submitted it";
}

void StallInspector::find_mismatches(Findings& findings) const {
  for (const Held& mine : ranks_.front().held) {
    for (std::size_t r = 1; r < ranks_.size(); ++r) {
      for (const Held& other : ranks_[r].held) {
        if (same_use(mine.entry, other.entry) && mine.entry.check != other.entry.check) {
          findings.verdicts.push_back(
              {mine.entry, Status(Code::kMismatch,
                                  "tensor '" + mine.entry.name + "': rank 0 submitted " + mine.entry.what +
                                      " but rank " + std::to_string(r) + " submitted " + other.entry.what,
                                  {static_cast<int>(r), mine.entry.name})});
          return;
        }
      }
    }
  }
}

void StallInspector::find_stuck(TimePoint now, Findings& findings) {
  std::uint64_t progress = 0;
  for (const RankState& state : ranks_) {
    progress = progress * 31 + state.report.progress;
  }
  if (!looks_stuck()) {
    stuck_since_.reset();
    return;
  }
  if (!stuck_since_ || progress != stuck_progress_) {
    stuck_since_ = now;
    stuck_progress_ = progress;
    return;
  }
  if (now - *stuck_since_ < options_.stuck_after) {
    return;
  }
  const std::string text =
      "every rank waits for something another rank has not submitted: " + describe_waits() +
      ". Likely cause: the ranks take different branches or a different number of steps; submit the "
      "same operations on all ranks";
  std::vector<WaitEntry> seen;
  for (const RankState& state : ranks_) {
    for (const Held& held : state.held) {
      const auto again = [&](const WaitEntry& e) { return same_use(e, held.entry); };
      if (std::none_of(seen.begin(), seen.end(), again)) {
        seen.push_back(held.entry);
        findings.verdicts.push_back({held.entry, Status(Code::kStuck, text, {-1, held.entry.name})});
      }
    }
  }
  stuck_since_.reset();
}

void StallInspector::find_late(TimePoint now, Findings& findings) {
  std::vector<WaitEntry> handled;
  for (RankState& state : ranks_) {
    for (Held& held : state.held) {
      if (now < held.warn_at) {
        continue;
      }
      if (!held.asked) {
        held.asked = true;
        held.warn_at = now + kAnswerTime;
        findings.query = true;
        continue;
      }
      const Duration age = now - held.since;
      const auto again = [&](const WaitEntry& e) { return same_use(e, held.entry); };
      const bool first = std::none_of(handled.begin(), handled.end(), again);
      handled.push_back(held.entry);
      held.asked = false;
      held.warn_at = now + options_.stall_warn;
      if (!first) {
        continue;
      }
      const std::string text = describe_late(held.entry, age);
      if (age >= options_.stall_fail) {
        findings.verdicts.push_back(
            {held.entry, Status(Code::kTimeout, text + "; given up (control.stall_fail)", {-1, held.entry.name})});
      } else {
        findings.warnings.push_back(text);
      }
    }
  }
}

StallInspector::Findings StallInspector::inspect(TimePoint now) {
  Findings findings;
  find_mismatches(findings);
  find_stuck(now, findings);
  find_late(now, findings);
  return findings;
}

std::optional<TimePoint> StallInspector::next_tick() const {
  std::optional<TimePoint> next;
  const auto sooner = [&](TimePoint t) { next = next ? std::min(*next, t) : t; };
  if (stuck_since_) {
    sooner(*stuck_since_ + options_.stuck_after);
  }
  for (const RankState& state : ranks_) {
    for (const Held& held : state.held) {
      sooner(held.warn_at);
    }
  }
  return next;
}

}  // namespace sirtaki::control
