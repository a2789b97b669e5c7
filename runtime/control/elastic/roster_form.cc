// The second half of Roster: who belongs to the next epoch, and when it begins.
#include <algorithm>
#include <iterator>
#include <tuple>

#include "runtime/control/elastic/roster.h"

namespace sirtaki::control {
namespace {

std::string whole_seconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count()) + " s";
}

}  // namespace

// Members of the present or last epoch that are connected, in the order of their ranks.
std::vector<Connection> Roster::survivors() const {
  std::map<Rank, Connection> found;
  for (const auto& [connection, person] : people_) {
    if (person.rank >= 0) {
      found.emplace(person.rank, connection);
    }
  }
  std::vector<Connection> result;
  for (const auto& [rank, connection] : found) {
    result.push_back(connection);
  }
  return result;
}

bool Roster::all_wait() const {
  return std::ranges::all_of(people_, [](const auto& entry) { return entry.second.rank < 0 || entry.second.waits; });
}

std::vector<Connection> Roster::candidates() const {
  std::map<int, Connection> found;
  for (const auto& [connection, person] : people_) {
    if (person.rank < 0) {
      found.emplace(person.id.slot, connection);
    }
  }
  std::vector<Connection> result;
  for (const auto& [slot, connection] : found) {
    result.push_back(connection);
  }
  return result;
}

std::vector<Connection> Roster::armed() const {
  std::vector<Connection> result = candidates();
  std::erase_if(result, [this](Connection connection) { return !people_.at(connection).waits; });
  return result;
}

bool Roster::joins() const {
  return admits() && !armed().empty() && survivors().size() < max_members();
}

// Goes by rank: each one that leaves is one less of those that may follow.
std::vector<Connection> Roster::leavers() const {
  std::vector<Connection> members = survivors();
  const auto stays = [this](Connection c) { return !people_.at(c).leaves; };
  if (std::ranges::none_of(members, stays) && !joins() && !options_.refills && members.size() >= min_members()) {
    return members;  // all of them, and the job ends
  }
  std::vector<Connection> result;
  const bool state_stays = std::ranges::any_of(members, [&](Connection c) { return stays(c) && has_state(c); });
  std::size_t present = members.size() + (admits() ? armed().size() : 0);
  for (const Connection member : members) {
    if (state_stays && !stays(member) && present > min_members()) {
      result.push_back(member);
      --present;
    }
  }
  return result;
}

void Roster::part(const std::vector<Connection>& leavers) {
  for (const Connection leaver : leavers) {
    const Person& person = people_.at(leaver);
    (options_.refills ? expected_ : given_up_).insert(person.id.slot);
    actions_.emplace_back(Part{leaver, person.rank});
    people_.erase(leaver);
  }
}

bool Roster::admits() const {
  return options_.max > 0 && std::ranges::all_of(people_, [](const auto& entry) {
           const Person& person = entry.second;
           return person.rank < 0 || !person.has_state || person.admits;
         });
}

// Processes that may still wait for the next epoch, besides those that do and survivors.
std::size_t Roster::coming() const {
  return expected_.size() + candidates().size() - armed().size();
}

void Roster::settle(TimePoint now) {
  if (phase_ == Phase::kRunning) {
    if (survivors().empty()) {
      return finish({Code::kShutdown, "all members have come to the end of the program"});
    }
    return want_change();
  }
  if (phase_ == Phase::kDone) {
    return;
  }
  if (done_) {
    return finish({Code::kShutdown, "the job has come to its end: a member has come to the end of the program"});
  }
  epoch_ == Epoch() ? settle_first(now) : settle_next(now);
}

void Roster::settle_first(TimePoint now) {
  std::vector<Connection> members = armed();
  const std::size_t present = members.size();
  if (present > 0 && !start_by_) {
    start_by_ = now + options_.start_timeout;
  }
  const bool over = start_by_ && now >= *start_by_;
  if (present > 0 && (present + coming() < min_members() || (over && present < min_members()))) {
    return finish({Code::kTimeout, too_few_text(present) + "; fix: look at the output of the processes that are "
                                                           "missing, and check that they can reach this server"});
  }
  if (present >= static_cast<std::size_t>(options_.start) || (present >= min_members() && (over || coming() == 0))) {
    members.resize(std::min(present, max_members()));
    form(members, now);
  }
}

void Roster::settle_next(TimePoint now) {
  const bool complete = all_wait();
  if (complete) {
    exclude_broken();
  }
  std::vector<Connection> members = survivors();
  const std::vector<Connection> ready = admits() ? armed() : std::vector<Connection>();
  const std::vector<Connection> leaving = complete ? leavers() : std::vector<Connection>();
  if (complete && std::ranges::none_of(members, [this](Connection c) { return people_.at(c).has_state; })) {
    return finish({Code::kPeerLost,
                   "all ranks that had the model are lost" + losses_text() +
                       "; fix: set elastic.snapshot_dir, and go on from its snapshots with --elastic-resume yes, or "
                       "start again from a checkpoint"});
  }
  if (leaving == members) {
    part(leaving);
    return finish({Code::kShutdown, "the job has come to its end: all members had to leave it"});
  }
  std::erase_if(members, [&](Connection c) { return std::ranges::count(leaving, c) != 0; });
  std::stable_partition(members.begin(), members.end(), [this](Connection c) { return people_.at(c).has_state; });
  const std::size_t room = max_members() - std::min(max_members(), members.size());
  members.insert(members.end(), ready.begin(),
                 ready.begin() + static_cast<std::ptrdiff_t>(std::min(room, ready.size())));
  if (members.size() < min_members()) {
    return wait_for_more(members.size(), now);
  }
  phase_ = Phase::kForming;
  wait_by_.reset();
  if (!complete) {
    return give_up_missing(now);
  }
  if (form_at_ && now < *form_at_) {
    return;
  }
  part(leaving);  // not before the others are sure to go on
  const Pairs before = repeats_.unconnected;
  if (count_repeats(now)) {
    return finish(
        {Code::kPeerLost,
         std::to_string(repeats_.count) +
             " epochs in a row have ended without a loss and without a step of an optimizer that counts: " +
             std::string(lost_.back().cause.text()) +
             ". Likely cause: a connection between two ranks that is cut again after each start, or an error that "
             "comes again at the same place; fix: look at the first error of that rank, and measure the links with "
             "sirtakirun --check"});
  }
  if (options_.gives_up_unconnected && repeats_.count > 0 && give_up_unconnected(before)) {
    return settle_next(now);  // others may take the places
  }
  form(members, now);
}

// Counts the epochs in a row that ended early without progress. Returns true if there are too many.
bool Roster::count_repeats(TimePoint now) {
  const StreamVerdicts before = std::exchange(repeats_.positions, verdict(reports_).streams);
  const bool whole = ended_ && survivors().size() == reports_.size();
  const bool repeats = whole && repeats_.positions == before && now - repeats_.since < options_.repeat_within;
  repeats_.count = repeats ? repeats_.count + 1 : 0;
  repeats_.unconnected = std::exchange(unconnected_, {});
  if (!whole) {
    repeats_.unconnected.clear();  // a loss may have been the cause
  }
  return repeats_.count >= options_.most_repeats;
}

// Gives up members until none of the pairs is left that could not connect in the last epoch and in the one before.
// Returns false if there are none, or if too few members would stay, or no majority: the fault is then that of the
// network between all of them, which may pass. The member in most of the pairs goes first, since the fault is likely to
// be on its side, and among several the youngest, but never the last one with the state.
bool Roster::give_up_unconnected(const Pairs& before) {
  Pairs pairs = repeats_.unconnected;
  std::erase_if(pairs, [&before](const auto& entry) { return !before.contains(entry.first); });
  auto with_state = std::ranges::count_if(people_, [](const auto& entry) { return entry.second.has_state; });
  std::vector<std::pair<Connection, Status>> gone;
  while (!pairs.empty()) {
    const auto has = [](Connection c) {
      return [c](const auto& entry) { return entry.first.first == c || entry.first.second == c; };
    };
    const auto weight = [&](Connection c) {
      const Person& person = people_.at(c);
      return std::tuple(!person.has_state || with_state > 1, std::ranges::count_if(pairs, has(c)), person.rank);
    };
    const auto lighter = [&weight](Connection a, Connection b) { return weight(a) < weight(b); };
    Connection chosen = pairs.begin()->first.first;
    for (const auto& [pair, why] : pairs) {
      chosen = std::max({chosen, pair.first, pair.second}, lighter);
    }
    const auto& [pair, why] = *std::ranges::find_if(pairs, has(chosen));
    const Connection other = pair.first == chosen ? pair.second : pair.first;
    const std::string text = "rank " + std::to_string(people_.at(chosen).rank) + " had no data connection with rank " +
                             std::to_string(people_.at(other).rank) +
                             " in two epochs in a row, although both reach the coordinator, and is given up" +
                             (why.ok() ? "" : ": " + std::string(why.text()));
    gone.emplace_back(chosen, Status(Code::kPeerLost, text));
    with_state -= people_.at(chosen).has_state ? 1 : 0;
    std::erase_if(pairs, has(chosen));
  }
  const std::size_t present = survivors().size();
  const std::size_t spare = admits() ? armed().size() : 0;
  if (gone.empty() || 2 * gone.size() >= present || present + spare < gone.size() + min_members()) {
    return false;
  }
  for (const auto& [connection, cause] : gone) {
    lost_.push_back({people_.at(connection).rank, cause});
    close(connection, cause);
    forget(people_.find(connection));
  }
  return true;
}

void Roster::wait_for_more(std::size_t present, TimePoint now) {
  phase_ = Phase::kWaiting;
  wait_by_ = wait_by_.value_or(now + options_.wait_timeout);
  // An earlier admission may be old, and the first one under way, so survivors have the last word when they wait.
  const bool refused = std::ranges::any_of(people_, [](const auto& entry) {
    const Person& person = entry.second;
    return person.rank >= 0 && person.waits && person.has_state && !person.admits;
  });
  const std::size_t others = refused ? 0 : armed().size() + coming();
  if (survivors().size() + others < min_members() || now >= *wait_by_) {
    finish({Code::kPeerLost, too_few_text(present) + losses_text()});
  }
}

// Gives up survivors whose programs have not come to the next epoch for too long.
void Roster::give_up_missing(TimePoint now) {
  if (!regroup_by_ || now < *regroup_by_) {
    return;
  }
  std::vector<Connection> missing = survivors();
  std::erase_if(missing, [this](Connection connection) { return people_.at(connection).waits; });
  regroup_by_.reset();
  for (const Connection connection : missing) {
    give_up(connection, "has not come to the next epoch within " + whole_seconds(options_.regroup_timeout), now);
  }
}

// Gives up new members that have not got the state of the job for too long: the others wait for them in sync().
void Roster::give_up_fresh(TimePoint now) {
  std::vector<Connection> late;
  for (const auto& [connection, person] : people_) {
    if (person.lacks_state() && person.state_by <= now) {
      late.push_back(connection);
    }
  }
  for (const Connection connection : late) {
    give_up(connection, "has not got the state of the job within " + whole_seconds(options_.state_timeout), now);
  }
}

void Roster::give_up(Connection connection, const std::string& what, TimePoint now) {
  if (const auto found = people_.find(connection); found != people_.end() && phase_ != Phase::kDone) {
    const Status cause(Code::kPeerLost, "rank " + std::to_string(found->second.rank) + " " + what + " and is given up");
    close(connection, cause);
    remove(connection, cause, now);
  }
}

void Roster::form(const std::vector<Connection>& members, TimePoint now) {
  const bool first = epoch_ == Epoch();
  ++epoch_.value;
  phase_ = Phase::kRunning;
  EpochFormed formed{epoch_, change_, options_.max > 0, -1, {}, verdict(reports_).streams};
  for (const Connection connection : members) {
    Person& person = people_.at(connection);
    // The state of a job is that with which its first members begin.
    person.has_state = person.has_state || first;
    formed.seats.push_back({person.id, person.rank, person.has_state});
  }
  actions_.emplace_back(Form{epoch_, members, formed});
  for (const Connection connection : members) {
    Person& person = people_.at(connection);
    person.waits = false;
    person.rank = ++formed.rank;
    person.state_by = now + options_.state_timeout;
    actions_.emplace_back(Send{connection, formed});
  }
  reports_.assign(members.size(), std::nullopt);
  lost_.clear();
  ended_ = false;
  repeats_.since = now;
  change_wanted_ = false;
  start_by_.reset();
  wait_by_.reset();
  regroup_by_.reset();
  form_at_.reset();
  want_change();
}

std::string Roster::too_few_text(std::size_t present) const {
  return "too few ranks: " + std::to_string(present) + " of at least " + std::to_string(options_.min) +
         " (elastic.min)";
}

std::string Roster::losses_text() const {
  std::string text;
  for (const LostRank& lost : lost_) {
    text += (text.empty() ? "; lost: " : "; ") + std::string(lost.cause.text());
  }
  return text;
}

}  // namespace sirtaki::control
