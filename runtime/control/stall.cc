#include "runtime/control/stall.h"

#include <algorithm>
#include <utility>

#include "runtime/control/scope.h"

namespace sirtaki::control {
namespace {

// An inspection this late was not delayed by work: the process was stopped.
constexpr Duration kStandstill = std::chrono::seconds(5);
constexpr Duration kAnswerTime = std::chrono::seconds(1);  // time for answers to a Query before a warning

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

StallInspector::StallInspector(int size, StallOptions options)
    : options_(options), ranks_(static_cast<std::size_t>(size)), alive_(RankSet::range(0, size)) {}

void StallInspector::on_report(const RankSet& from, Waiting report, TimePoint now) {
  skip_standstill(now);
  const RankSet ranks = from.common(alive_);
  const auto fresh = std::make_shared<const Waiting>(std::move(report));
  // Ranks with the same previous report are handled together.
  std::map<Report, RankSet> before;
  for (const Rank r : ranks.ranks()) {
    Report& last = ranks_[static_cast<std::size_t>(r)].report;
    if (last) {
      before[last].add(r);
    }
    last = fresh;
  }
  for (const WaitEntry& entry : fresh->entries) {
    add(entry, ranks, now);
  }
  for (const auto& [old, group] : before) {
    for (const WaitEntry& entry : old->entries) {
      const auto again = [&](const WaitEntry& e) { return key_of(e) == key_of(entry); };
      if (std::ranges::none_of(fresh->entries, again)) {
        release(entry, group);
      }
    }
  }
}

void StallInspector::add(const WaitEntry& entry, const RankSet& ranks, TimePoint now) {
  const auto [it, first] = in_flight_.try_emplace(key_of(entry));
  InFlight& in_flight = it->second;
  if (first) {
    in_flight.since = now;
    in_flight.warn_at = now + options_.stall_warn;
  }
  in_flight.ranks.add(ranks);
  bool known = false;
  for (Variant& variant : in_flight.variants) {
    const bool same = variant.entry.check == entry.check;
    known = known || same;
    same ? variant.ranks.add(ranks) : variant.ranks.remove(ranks);
  }
  if (!known) {
    in_flight.variants.push_back({entry, ranks});
  }
  std::erase_if(in_flight.variants, [](const Variant& v) { return v.ranks.empty(); });
}

void StallInspector::release(const WaitEntry& entry, const RankSet& ranks) {
  const auto it = in_flight_.find(key_of(entry));
  if (it == in_flight_.end()) {
    return;
  }
  it->second.ranks.remove(ranks);
  for (Variant& variant : it->second.variants) {
    variant.ranks.remove(ranks);
  }
  std::erase_if(it->second.variants, [](const Variant& v) { return v.ranks.empty(); });
  if (it->second.ranks.empty()) {
    in_flight_.erase(it);
  }
}

void StallInspector::on_gone(Rank rank) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  state.gone = true;
  alive_.remove(RankSet::of(rank));
  if (const Report report = std::exchange(state.report, nullptr)) {
    for (const WaitEntry& entry : report->entries) {
      release(entry, RankSet::of(rank));
    }
  }
}

void StallInspector::set_joined(const RankSet& ranks, bool joined) {
  if (joined) {
    joined_.add(ranks);
  } else {
    joined_.remove(ranks);
  }
}

// Only these ranks count in an entry; for others it is irrelevant whether they have it in flight.
RankSet StallInspector::participants(const InFlight& in_flight) const {
  const WaitEntry& entry = in_flight.variants.front().entry;
  const RankSet all = alive_.common(scope_of(entry.name, static_cast<int>(ranks_.size())));
  return entry.kind == WaitKind::kStreamOpen ? all : all.without(joined_);
}

bool StallInspector::looks_stuck() const {
  const RankSet programs = alive_.without(joined_);
  for (const Rank r : programs.ranks()) {
    const Report& report = ranks_[static_cast<std::size_t>(r)].report;
    if (!report || !report->blocked || report->entries.empty()) {
      return false;
    }
  }
  // An operation in flight on all ranks is being transferred, and the data plane will finish it.
  const auto shared = [&](const auto& entry) {
    const InFlight& in_flight = entry.second;
    return !in_flight.ranks.common(programs).empty() && in_flight.ranks.contains(participants(in_flight));
  };
  return !programs.empty() && std::ranges::none_of(in_flight_, shared);
}

// The value changes when any rank makes progress.
std::uint64_t StallInspector::progress() const {
  std::uint64_t all = 0;
  for (const RankState& state : ranks_) {
    all = all * 31 + (state.report ? state.report->progress : 0);
  }
  return all;
}

std::string StallInspector::describe_waits() const {
  std::map<std::string, RankSet> waits;
  for (const auto& [key, in_flight] : in_flight_) {
    for (const Variant& variant : in_flight.variants) {
      waits[describe(variant.entry)].add(variant.ranks);
    }
  }
  std::string text;
  for (const auto& [what, ranks] : waits) {
    text += (text.empty() ? "" : "; ") + ranks.to_string() + (ranks.size() == 1 ? " waits for " : " wait for ") + what;
  }
  return text;
}

std::string StallInspector::describe_late(const InFlight& in_flight, Duration age) const {
  const RankSet concerned = participants(in_flight);
  const RankSet missing = concerned.without(in_flight.ranks);
  const RankSet waiting =
      in_flight.ranks.common(concerned).empty() ? in_flight.ranks : in_flight.ranks.common(concerned);
  std::string text = waiting.to_string() + (waiting.size() == 1 ? " has" : " have") + " waited " +
                     seconds_to_string(age) + " for " + describe(in_flight.variants.front().entry);
  if (missing.empty()) {
    return text + "; every rank has submitted it, so the network is slow or blocked";
  }
  return text + "; " + missing.to_string() + (missing.size() == 1 ? " is alive but has" : " are alive but have") +
         " not submitted it";
}

void StallInspector::find_mismatches(Findings& findings) const {
  for (const auto& [key, in_flight] : in_flight_) {
    if (in_flight.variants.size() < 2) {
      continue;
    }
    std::vector<const Variant*> variants;
    for (const Variant& variant : in_flight.variants) {
      variants.push_back(&variant);
    }
    std::ranges::sort(variants, {}, [](const Variant* v) { return v->ranks.front(); });
    const Variant& mine = *variants[0];
    const Variant& other = *variants[1];
    findings.verdicts.push_back(
        {mine.entry, Status(Code::kMismatch,
                            "tensor '" + key.name + "': " + mine.ranks.to_string() + " submitted " + mine.entry.what +
                                " but " + other.ranks.to_string() + " submitted " + other.entry.what,
                            {other.ranks.front(), key.name})});
    return;
  }
}

void StallInspector::find_stuck(TimePoint now, Findings& findings) {
  if (!looks_stuck()) {
    stuck_since_.reset();
    return;
  }
  const std::uint64_t moved = progress();
  if (!stuck_since_ || moved != stuck_progress_) {
    stuck_since_ = now;
    stuck_progress_ = moved;
    return;
  }
  if (now - *stuck_since_ < options_.stuck_after) {
    return;
  }
  for (const Rank r : alive_.without(joined_).ranks()) {
    if (ranks_[static_cast<std::size_t>(r)].report->gives_way) {
      findings.give_way.add(r);
    }
  }
  if (!findings.give_way.empty()) {
    stuck_since_ = now;  // checked again: the next wait of that thread may have an equal report
    return;
  }
  stuck_since_.reset();
  const std::string text =
      "every rank waits for something another rank has not submitted: " + describe_waits() +
      ". Likely cause: the ranks take different branches or a different number of steps; submit the "
      "same operations on all ranks";
  for (const auto& [key, in_flight] : in_flight_) {
    findings.verdicts.push_back({in_flight.variants.front().entry, Status(Code::kStuck, text, {-1, key.name})});
  }
}

void StallInspector::find_late(TimePoint now, Findings& findings) {
  for (auto& [key, in_flight] : in_flight_) {
    if (now < in_flight.warn_at) {
      continue;
    }
    if (!in_flight.asked) {
      in_flight.asked = true;
      in_flight.warn_at = now + kAnswerTime;
      findings.query = true;
      continue;
    }
    const Duration age = now - in_flight.since;
    in_flight.asked = false;
    in_flight.warn_at = now + options_.stall_warn;
    const std::string text = describe_late(in_flight, age);
    if (age >= options_.stall_fail) {
      findings.verdicts.push_back({in_flight.variants.front().entry,
                                   Status(Code::kTimeout, text + "; given up (control.stall_fail)", {-1, key.name})});
    } else {
      findings.warnings.push_back(text);
    }
  }
}

void StallInspector::skip_standstill(TimePoint now) {
  const auto due = next_tick();
  if (!due || now - *due < kStandstill) {
    return;
  }
  const Duration lost = now - *due;
  if (stuck_since_) {
    stuck_since_ = now;  // the whole time again: ranks may still be stopped
  }
  for (auto& [key, in_flight] : in_flight_) {
    in_flight.since += lost;
    in_flight.warn_at += lost;
  }
}

StallInspector::Findings StallInspector::inspect(TimePoint now) {
  skip_standstill(now);
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
  for (const auto& [key, in_flight] : in_flight_) {
    sooner(in_flight.warn_at);
  }
  return next;
}

}  // namespace sirtaki::control
