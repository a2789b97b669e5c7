// The hosts of a job and the places of its ranks; in jobs that grow, vacant places are filled where there is room.
#include <signal.h>

#include <algorithm>
#include <random>
#include <utility>

#include "launcher/job.h"
#include "runtime/base/config/option_value.h"

namespace sirtaki::launcher {

namespace {

// Hosts that are left out, of which the user is told once.
constexpr std::size_t kMostLeftOut = 1000;

}  // namespace

// Returns the ranks that have their places on the host of this agent.
std::vector<Rank> Job::ranks_of(const AgentLink& link) const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < plan_.places; ++rank) {
    const RankState& state = ranks_.at(static_cast<std::size_t>(rank));
    if (state.link == &link && !state.vacant) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

// One machine may appear under two names.
std::string Job::machine_of(const AgentLink& link) const {
  const std::string& host_id = plan_.config->job.host_id;
  return host_id.empty() ? link.hello().host_id : host_id;
}

// Gives a rank of the start its host.
void Job::seat(Rank rank, AgentLink& link) {
  RankState state;
  state.link = &link;
  ranks_.at(static_cast<std::size_t>(rank)) = std::move(state);
}

// Prepares the ranks of the start, when all agents have answered.
void Job::seat_ranks() {
  std::vector<std::string> machines;
  for (Rank rank = 0; rank < plan_.size; ++rank) {
    machines.push_back(machine_of(*ranks_.at(static_cast<std::size_t>(rank)).link));
  }
  const std::vector<RankNumbers> numbers = rank_numbers(machines);
  for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
    ranks_[rank].numbers = numbers[rank];
    ranks_[rank].starts = 1;
    ranks_[rank].member_since = std::chrono::steady_clock::now();
  }
  if (discovers()) {
    return;
  }
  std::vector<Host> hosts;
  for (const auto& link : links_) {
    hosts.push_back({link->placement().host, link->placement().slots});
  }
  growth_.fleet.offer(hosts);
  for (const Host& host : hosts) {
    growth_.fleet.set_ready(host.name, true);
  }
}

std::vector<Fleet::Seat> Job::seats() const {
  std::vector<Fleet::Seat> seats;
  for (const RankState& state : ranks_) {
    const bool has_state = state.member_since && !state.lost;
    seats.push_back(state.vacant ? Fleet::Seat{"", false, state.given_up}
                                 : Fleet::Seat{state.link->placement().host, has_state});
  }
  return seats;
}

// Returns the newest agent of a host.
AgentLink* Job::link_of(const std::string& host) const {
  AgentLink* found = nullptr;
  for (const auto& link : links_) {
    found = link->placement().host == host ? link.get() : found;
  }
  return found;
}

// Returns for how long a host is used without a break: the time that one of its ranks has been in the job.
Duration Job::used(const std::string& host) const {
  Duration longest = Duration::zero();
  const AgentLink* link = link_of(host);
  for (const Rank rank : link == nullptr ? std::vector<Rank>() : ranks_of(*link)) {
    if (const auto since = ranks_.at(static_cast<std::size_t>(rank)).member_since) {
      longest = std::max<Duration>(longest, std::chrono::steady_clock::now() - *since);
    }
  }
  return longest;
}

// Drops what is known of hosts that have gone or were refused; there may be many in the life of a job. A place whose
// rank was on such a host refers to it until another one takes the place.
void Job::forget_hosts() {
  if (!discovers()) {
    return;  // the command line names them all
  }
  const auto has_place = [this](const AgentLink& link) {
    return std::ranges::any_of(ranks_, [&](const RankState& rank) { return rank.link == &link; });
  };
  for (const auto& link : take_spent(links_, has_place)) {
    const std::string& host = link->placement().host;
    stopping_.erase(link.get());
    if (link_of(host) == nullptr && growth_.fleet.forget(host, std::chrono::steady_clock::now())) {
      growth_.routes.erase(host);
    }
  }
  if (growth_.left_out.size() > kMostLeftOut) {
    growth_.left_out.clear();  // the user has read of them long ago
  }
}

// Empties and fills places as the hosts have changed.
void Job::update_places() {
  if (!grows() || phase_ != Phase::kRunning || growth_.over) {
    return;
  }
  const TimePoint now = std::chrono::steady_clock::now();
  if (growth_.begun) {
    for (const Rank rank : growth_.fleet.leaves(seats())) {
      ask_to_leave(rank);
    }
  }
  for (const auto& [rank, host] : growth_.fleet.starts(seats(), now)) {
    take_place(rank, *link_of(host));
  }
  start_due_ranks();
  if (discovers()) {
    call_absent_hosts();
    retire_hosts();
  }
}

void Job::take_place(Rank rank, AgentLink& link) {
  std::vector<std::pair<std::string, RankNumbers>> others;
  for (const RankState& other : ranks_) {
    if (!other.vacant) {
      others.emplace_back(machine_of(*other.link), other.numbers);
    }
  }
  RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  state.numbers = numbers_beside(others, machine_of(link));
  state.link = &link;
  state.vacant = false;
  state.due = true;
  growth_.restarts.forget(rank);
}

// Makes the place of a rank whose process has ended free for any host.
void Job::vacate(Rank rank) {
  RankState& state = ranks_.at(static_cast<std::size_t>(rank));
  state.vacant = state.exited = state.closed = state.lost = state.settled = true;
  state.member_since.reset();
  state.due = state.fresh = state.spare = state.parted = state.asked = state.noticed = false;
  state.timer.reset();
}

// Closes the slot of a rank whose process has ended. Another host may have room for it.
void Job::close_slot(Rank rank) {
  vacate(rank);
  growth_.fleet.close_slot(ranks_.at(static_cast<std::size_t>(rank)).link->placement().host, seats());
  update_places();
  give_up_vacant();
}

// Vacates the place of a rank whose host is out.
void Job::release(Rank rank) {
  vacate(rank);
  give_up_vacant();
}

// The others wait for no more processes than may come. A script may name further hosts at any time.
void Job::give_up_vacant() {
  if (!grows() || discovers()) {
    return;
  }
  long room = growth_.fleet.room(seats());
  for (Rank rank = 0; rank < plan_.places; ++rank) {
    RankState& state = ranks_.at(static_cast<std::size_t>(rank));
    if (state.vacant && !state.given_up && room-- <= 0) {
      state.given_up = true;
      coordinator_->give_up(rank);
    }
  }
}

// Leaves the host of a rank that has failed out, with all its ranks.
void Job::fail_host(Rank rank) {
  if (ranks_.at(static_cast<std::size_t>(rank)).asked) {
    return;
  }
  AgentLink& link = *ranks_.at(static_cast<std::size_t>(rank)).link;
  if (link.joined() && link.ended()) {
    return;  // its ranks are lost with it, and it may join again
  }
  const std::string& host = link.placement().host;
  const std::string why = ", because rank " + std::to_string(rank) + " has failed there (elastic.on_failure)";
  const auto& rules = plan_.config->elastic;
  if (rules.cooldown == Duration::zero() || !grows() || (!discovers() && link.ended())) {
    growth_.fleet.bar(host, TimePoint::max(), "is left out for good" + why);
    log("host " + host + " is left out for good" + why);
    link.tell("this host is left out" + why, 1);
    withdraw(link);
  } else {
    std::random_device random;
    const double jitter = std::uniform_real_distribution<double>()(random);
    const TimePoint now = std::chrono::steady_clock::now();
    const Duration pause = growth_.fleet.rest(host, rules.cooldown, rules.cooldown_limit, now, used(host), jitter);
    log("host " + host + " rests for " + format_duration(pause) + why);
    growth_.fleet.bar(host, now + pause, "rests" + why);
    const auto timer = std::make_shared<boost::asio::steady_timer>(io_, pause);
    timer->async_wait([this, timer](const boost::system::error_code& error) {
      if (!error) {
        update_places();
      }
    });
  }
  for (const Rank other : ranks_of(link)) {
    RankState& state = ranks_.at(static_cast<std::size_t>(other));
    if (std::exchange(state.asked, true)) {
      continue;  // it leaves on notice
    }
    state.fresh = false;
    if (!state.exited && !link.ended()) {
      link.send(FrameType::kEndRank, encode(EndRank{other, SIGKILL}));
    }
    if (other != rank && state.closed && state.settled) {
      release(other);
    }
  }
}

}  // namespace sirtaki::launcher
