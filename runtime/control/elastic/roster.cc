#include "runtime/control/elastic/roster.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace sirtaki::control {
namespace {

std::string name_of(const MemberId& id) {
  return "the process of slot " + std::to_string(id.slot) + " (start " + std::to_string(id.incarnation) + ")";
}

Status job_has_ended() {
  return {Code::kShutdown, "the job has come to its end"};
}

}  // namespace

Roster::Roster(RosterOptions options) : options_(options) {
  SRT_CHECK(options_.min >= 1 && options_.start >= options_.min);
  SRT_CHECK(options_.max == 0 || options_.max >= options_.start);
  for (int slot = 0; slot < options_.start; ++slot) {
    expected_.insert(slot);
  }
}

void Roster::on_hello(Connection from, MemberId id, TimePoint now) {
  if (people_.count(from) != 0) {
    return broke_protocol(from, "it said hello twice", now);
  }
  const auto newest = incarnations_.find(id.slot);
  if (newest != incarnations_.end() && id.incarnation < newest->second) {
    return close(from, {Code::kPeerLost, name_of(id) + " was given up and another has its place"});
  }
  // The same process dials again after its connection broke, or another one follows it, before the end of the old
  // connection was noticed.
  const auto old = std::ranges::find_if(people_, [&](const auto& entry) { return entry.second.id.slot == id.slot; });
  if (old != people_.end()) {
    const Connection before = old->first;
    const Status cause(Code::kPeerLost, name_of(old->second.id) + " has left its connection");
    close(before, cause);
    expected_.insert(id.slot);  // or the loss may end the job
    remove(before, cause, now);
  }
  expected_.erase(id.slot);
  given_up_.erase(id.slot);
  if (phase_ == Phase::kDone || done_) {
    return close(from, job_has_ended());
  }
  incarnations_[id.slot] = id.incarnation;
  people_[from].id = id;
  settle(now);
}

void Roster::on_regroup(Connection from, const Regroup& regroup, TimePoint now) {
  const auto found = people_.find(from);
  if (found == people_.end()) {
    return;
  }
  Person& person = found->second;
  if (phase_ == Phase::kDone) {
    actions_.emplace_back(Send{from, JobEnds{job_has_ended()}});
    return;
  }
  const bool member = person.rank >= 0;
  if (person.waits || (member && regroup.last != epoch_)) {
    return broke_protocol(from, "it asked for the next epoch out of turn", now);
  }
  const auto is_other = [&](Rank rank) {
    return rank != person.rank && static_cast<std::size_t>(rank) < reports_.size();
  };
  if (member &&
      (regroup.unreachable.size() >= reports_.size() || !std::ranges::all_of(regroup.unreachable, is_other))) {
    return broke_protocol(from, "it named ranks that it cannot lack", now);
  }
  person.waits = true;
  person.has_state = member && regroup.has_state;
  person.admits = person.has_state && regroup.admits;
  if (member) {
    on_unreachable(from, regroup);
    on_report(person, regroup, now);
  }
  settle(now);
}

void Roster::on_unreachable(Connection from, const Regroup& regroup) {
  for (const auto& [connection, other] : people_) {
    if (connection != from && std::ranges::count(regroup.unreachable, other.rank) != 0) {
      Status& why = unconnected_[std::minmax(from, connection)];
      why = why.ok() ? regroup.why : why;
    }
  }
}

void Roster::on_report(const Person& person, const Regroup& regroup, TimePoint now) {
  const Rank rank = person.rank;
  reports_[static_cast<std::size_t>(rank)] = regroup.streams;
  if (phase_ == Phase::kRunning && change_wanted_ && regroup.change == change_) {
    phase_ = Phase::kForming;  // all end the epoch behind the same step
    regroup_by_ = now + options_.regroup_timeout;
  } else if (!ended_ && (phase_ == Phase::kRunning || regroup.change != change_)) {
    const std::string cause = regroup.why.ok() ? "" : ": " + std::string(regroup.why.text());
    const Rank blamed = regroup.why.blame().rank;
    end_epoch({rank,
               {Code::kPeerLost,
                "rank " + std::to_string(rank) + " cannot continue the epoch" + cause,
                {blamed < 0 ? rank : blamed, ""}}},
              now);
  }
}

void Roster::on_admission(Connection from, const Admission& admission, TimePoint now) {
  const auto found = people_.find(from);
  if (found == people_.end() || found->second.rank < 0 || found->second.waits) {
    return;
  }
  found->second.admits = admission.admits;
  found->second.has_state = found->second.has_state || admission.admits;
  settle(now);
}

void Roster::on_leaving(Connection from, TimePoint now) {
  if (const auto found = people_.find(from); found != people_.end() && found->second.rank >= 0) {
    found->second.leaves = true;
    settle(now);
  }
}

void Roster::on_departure(Connection from, const Departure& departure, TimePoint now) {
  const auto found = people_.find(from);
  if (found == people_.end()) {
    return;
  }
  const Rank rank = found->second.rank;
  if (rank < 0 || !departure.done) {
    return remove(from, {Code::kPeerLost, "rank " + std::to_string(rank) + " left the job before its end"}, now);
  }
  people_.erase(found);
  if (phase_ == Phase::kDone) {
    return;
  }
  if (!std::exchange(done_, true)) {
    for (const Connection candidate : candidates()) {
      close(candidate, job_has_ended());
      people_.erase(candidate);
    }
  }
  settle(now);
}

void Roster::on_lost(Connection from, const Status& cause, TimePoint now) {
  remove(from, cause, now);
}

void Roster::on_expected(int slot, bool expected, TimePoint now) {
  if (expected && given_up_.count(slot) == 0) {
    expected_.insert(slot);
  } else {
    expected_.erase(slot);
  }
  settle(now);
}

void Roster::on_given_up(int slot, TimePoint now) {
  given_up_.insert(slot);
  on_expected(slot, false, now);
}

void Roster::on_tick(TimePoint now) {
  if (form_at_ && now >= *form_at_) {
    form_at_.reset();  // or next_tick() would return it for as long as some program has not come
  }
  give_up_fresh(now);
  settle(now);
}

std::optional<TimePoint> Roster::next_tick() const {
  std::optional<TimePoint> next;
  const auto consider = [&next](const std::optional<TimePoint>& due) {
    next = due && (!next || *due < *next) ? due : next;
  };
  if (phase_ == Phase::kWaiting || phase_ == Phase::kForming) {
    for (const auto& due : {start_by_, wait_by_, regroup_by_, form_at_}) {
      consider(due);
    }
  }
  for (const auto& [connection, person] : people_) {
    if (person.lacks_state() && phase_ != Phase::kDone) {
      consider(person.state_by);
    }
  }
  return next;
}

bool Roster::has_state(Connection connection) const {
  const auto found = people_.find(connection);
  return found != people_.end() && found->second.has_state;
}

void Roster::close(Connection connection, const Status& why) {
  actions_.emplace_back(Close{connection, why});
}

void Roster::broke_protocol(Connection connection, const std::string& what, TimePoint now) {
  const Status cause = corrupt(name_of(people_.at(connection).id) + " broke the protocol: " + what);
  close(connection, cause);
  remove(connection, cause, now);
}

void Roster::remove(Connection connection, const Status& cause, TimePoint now) {
  const auto found = people_.find(connection);
  if (found == people_.end()) {
    return;
  }
  const Rank rank = found->second.rank;
  forget(found);
  if (phase_ == Phase::kDone) {
    return;
  }
  if (rank >= 0) {
    form_at_ = now + options_.linger;
    if (ended_) {
      lost_.push_back({rank, cause});
    } else {
      end_epoch({rank, cause}, now);
    }
  }
  settle(now);
}

void Roster::forget(People::iterator person) {
  // Before the first epoch nobody has the state that another process would get.
  const int slot = person->second.id.slot;
  if (options_.max > 0 && epoch_ != Epoch() && given_up_.count(slot) == 0) {
    expected_.insert(slot);
  }
  people_.erase(person);
}

void Roster::end_epoch(const LostRank& lost, TimePoint now) {
  ended_ = true;
  phase_ = Phase::kForming;
  lost_.push_back(lost);
  regroup_by_ = now + options_.regroup_timeout;
  for (const auto& [connection, person] : people_) {
    if (person.rank >= 0 && !person.waits) {
      actions_.emplace_back(Send{connection, EpochEnds{epoch_, lost}});
    }
  }
}

// Turns members without the results of a step that counts into candidates: their state is not that of the job. In a job
// that does not grow they are lost.
void Roster::exclude_broken() {
  const std::vector<Rank> broken = verdict(reports_).broken;
  for (const Connection connection : survivors()) {
    Person& person = people_.at(connection);
    if (std::ranges::count(broken, person.rank) == 0) {
      continue;
    }
    ++broken_;
    if (options_.max == 0) {
      lost_.push_back({person.rank,
                       {Code::kPeerLost, "rank " + std::to_string(person.rank) +
                                             " lacks results of a step that the others have, and cannot go on with "
                                             "them"}});
      close(connection, lost_.back().cause);
      people_.erase(connection);
    } else {
      person.rank = -1;
      person.has_state = person.admits = false;
    }
  }
}

void Roster::want_change() {
  if (phase_ == Phase::kRunning && !done_ && !change_wanted_ && (joins() || !leavers().empty())) {
    change_wanted_ = true;
    ++change_;
    for (const Connection member : survivors()) {
      actions_.emplace_back(Send{member, ChangeWanted{change_}});
    }
  }
}

void Roster::finish(const Status& why) {
  phase_ = Phase::kDone;
  for (const auto& [connection, person] : people_) {
    actions_.emplace_back(Send{connection, JobEnds{why}});
  }
  actions_.emplace_back(End{why});
}

std::string Roster::describe() const {
  static constexpr const char* kPhases[] = {"waiting", "forming", "running", "done"};
  std::string text = kPhases[static_cast<int>(phase_)];
  const auto number = [&text](const char* name, auto value) { text.append(name).append(std::to_string(value)); };
  const auto flag = [&text](bool on, const char* name) { text += on ? name : ""; };
  number(", epoch ", epoch_.value);
  number(", change ", change_);
  flag(change_wanted_, " wanted");
  flag(ended_, ", ended");
  flag(done_, ", program at its end");
  flag(form_at_.has_value(), ", lingers");
  number(", repeats ", repeats_.count);
  for (const StreamVerdict& stream : repeats_.positions) {
    number(" behind ", stream.committed);
  }
  for (const auto& [connection, person] : people_) {
    number("; slot ", person.id.slot);
    number(".", person.id.incarnation);
    number(" rank ", person.rank);
    flag(person.has_state, " has state");
    flag(person.admits, " admits");
    flag(person.waits, " waits");
    flag(person.leaves, " leaves");
  }
  for (const Pairs* pairs : {&unconnected_, &repeats_.unconnected}) {
    for (const auto& [pair, why] : *pairs) {
      const auto& [first, second] = pair;
      if (people_.contains(first) && people_.contains(second)) {
        number(pairs == &unconnected_ ? "; unconnected " : "; unconnected before ", people_.at(first).id.slot);
        number("-", people_.at(second).id.slot);
      }
    }
  }
  for (const auto& report : reports_) {
    flag(!report, "; no report");
    flag(report.has_value(), "; report");
    for (const StreamReport& r : report.value_or(StreamReports())) {
      number(" ", r.stream.value);
      number(":", r.attempt);
      number(".", r.step);
      number("/", static_cast<int>(r.state));
    }
  }
  for (const int slot : expected_) {
    number("; expects slot ", slot);
  }
  for (const int slot : given_up_) {
    number("; gave up slot ", slot);
  }
  return text;
}

}  // namespace sirtaki::control
