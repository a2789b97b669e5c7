#include "runtime/hub/elastic_hub.h"

#include <algorithm>
#include <utility>

#include "runtime/rendezvous/join_round.h"

namespace sirtaki::hub {
namespace {

using control::Connection;
using control::Roster;
using rendezvous::PeerId;

Connection connection_of(PeerId peer) {
  return Connection(peer.value);
}
PeerId peer_of(Connection connection) {
  return PeerId(connection.value);
}

}  // namespace

ElasticHub::ElasticHub(Loop& loop, control::RosterOptions options, int places, Events events)
    : loop_(loop), roster_(options), events_(std::move(events)), options_(options), places_(places) {
  for (Rank slot = 0; slot < options.start; ++slot) {
    remaining_.insert(slot);
  }
}

// ---- events of the server ----

void ElasticHub::on_waiting(rendezvous::Server& server, PeerId peer, Rank slot, ConstBytes report) {
  arrived_ = true;
  waiting_.insert(peer);
  const bool first = slots_.emplace(peer, slot).second;
  control::Regroup regroup;
  if (first) {
    if (!hosts_[slot].empty()) {
      homes_[peer] = hosts_[slot];
    }
    if (grows() && roster_.epoch() != Epoch()) {
      events_.new_rank({slot, NewRank::Stage::kWaits, {}, {}, 0});
    }
    roster_.on_hello(connection_of(peer), {slot, starts_[slot]++}, loop_.now());
  } else {
    const auto decoded = control::decode_roster_report(report);
    const auto* request = decoded ? std::get_if<control::Regroup>(&*decoded) : nullptr;
    if (request == nullptr) {
      const Status cause = corrupt("rank " + std::to_string(slot) + " has sent no report of its steps");
      server.dismiss(peer, cause);
      return on_gone(server, peer, cause);
    }
    regroup = *request;
  }
  const bool had_state = first || roster_.has_state(connection_of(peer));
  roster_.on_regroup(connection_of(peer), regroup, loop_.now());
  tell_state(peer, had_state);  // an epoch may end before the admission that says so has come
  act(server);
  if (first) {
    announce(server, slot, false);  // behind the change that it brings about
  }
}

void ElasticHub::on_report(rendezvous::Server& server, PeerId peer, ConstBytes report) {
  const auto decoded = control::decode_roster_report(report);
  if (decoded && std::holds_alternative<control::MustLeave>(*decoded)) {
    const Rank slot = slots_.at(peer);
    roster_.on_leaving(connection_of(peer), loop_.now());
    act(server);
    return announce(server, slot, false);
  }
  const auto* admission = decoded ? std::get_if<control::Admission>(&*decoded) : nullptr;
  if (admission == nullptr) {
    const Status cause = corrupt("rank " + std::to_string(slots_.at(peer)) + " has sent an unknown report");
    server.dismiss(peer, cause);
    return on_gone(server, peer, cause);
  }
  const bool had_state = roster_.has_state(connection_of(peer));
  roster_.on_admission(connection_of(peer), *admission, loop_.now());
  tell_state(peer, had_state);
  act(server);
}

void ElasticHub::tell_state(PeerId peer, bool had_state) {
  if (!had_state && roster_.has_state(connection_of(peer))) {
    events_.new_rank({slots_.at(peer), NewRank::Stage::kHasState, {}, {}, 0});
  }
}

void ElasticHub::on_quit(rendezvous::Server& server, PeerId peer, bool at_end) {
  const Rank slot = slots_.at(peer);
  if (at_end) {
    vacate(slot);
  } else {
    lose_process(slot,
                 {Code::kPeerLost, "rank " + std::to_string(slot) + " has not waited for the next epoch", {slot, ""}});
  }
  const std::string host = host_of(peer);
  forget(peer);
  roster_.on_departure(connection_of(peer), {at_end}, loop_.now());
  if (!at_end) {
    lose_neighbours(server, host);
  }
  act(server);
}

void ElasticHub::on_gone(rendezvous::Server& server, PeerId peer, const Status& cause) {
  const std::string host = host_of(peer);
  lose_peer(peer, cause);
  lose_neighbours(server, host);
  act(server);
}

void ElasticHub::lose_peer(PeerId peer, const Status& cause) {
  lose_process(slots_.at(peer), cause);
  forget(peer);
  roster_.on_lost(connection_of(peer), cause, loop_.now());
}

void ElasticHub::forget(PeerId peer) {
  slots_.erase(peer);
  waiting_.erase(peer);
  homes_.erase(peer);
}

// Gives up the others on the host of a lost process, before anybody is told, so that the survivors change once. At the
// end of the job, they may still be writing their results.
void ElasticHub::lose_neighbours(rendezvous::Server& server, const std::string& host) {
  if (host.empty() || roster_.phase() == Roster::Phase::kDone) {
    return;
  }
  const auto why = [this](Rank neighbour) {
    const std::string text = name_of(neighbour) + " is given up with its host, on which another process has failed";
    return Status(Code::kPeerLost, text, {neighbour, ""});
  };
  for (const auto& [peer, neighbour] : std::map<PeerId, Rank>(slots_)) {
    if (host_of(peer) == host) {
      server.dismiss(peer, why(neighbour));
      lose_peer(peer, why(neighbour));
    }
  }
  for (const Rank neighbour : std::set<Rank>(remaining_)) {  // those that have not come yet
    if (hosts_[neighbour] == host && !is_connected(neighbour)) {
      lose(neighbour, why(neighbour));
      roster_.on_expected(neighbour, false, loop_.now());
    }
  }
}

// A slot may get a process on another host before the hub has noticed the end of the last one.
void ElasticHub::set_host(Rank slot, const std::string& host) {
  hosts_[slot] = host;
  for (const auto& [peer, occupied] : slots_) {
    if (occupied == slot && host.empty()) {
      homes_.erase(peer);
    } else if (occupied == slot) {
      homes_.emplace(peer, host);
    }
  }
}

std::string ElasticHub::host_of(PeerId peer) const {
  const auto found = homes_.find(peer);
  return found == homes_.end() ? "" : found->second;
}

bool ElasticHub::is_connected(Rank slot) const {
  return std::ranges::any_of(slots_, [&](const auto& entry) { return entry.second == slot; });
}

std::string ElasticHub::name_of(Rank slot) const {
  const auto seat = std::ranges::find(seats_, slot);
  return seat == seats_.end() ? "rank " + std::to_string(slot)
                              : names_.at(static_cast<std::size_t>(seat - seats_.begin()));
}

void ElasticHub::on_absent(rendezvous::Server& server, Rank slot, const Status& cause) {
  if (remaining_.count(slot) != 0) {
    lose(slot, cause);
    roster_.on_expected(slot, false, loop_.now());
    lose_neighbours(server, hosts_[slot]);
    act(server);
  }
}

void ElasticHub::give_up(rendezvous::Server& server, Rank slot) {
  roster_.on_given_up(slot, loop_.now());
  act(server);
}

void ElasticHub::announce(rendezvous::Server& server, Rank slot, bool on_its_way) {
  const bool changed = on_its_way ? announced_.insert(slot).second : announced_.erase(slot) != 0;
  if (changed && in_epoch_) {
    tell_announced(server);
  }
}

// Returns how many processes will change the members. Those that find the job full are spares, and change nothing.
std::size_t ElasticHub::announced() const {
  const auto leaves = [this](Rank slot) { return is_connected(slot) && std::ranges::count(seats_, slot) != 0; };
  const auto leaving = static_cast<std::size_t>(std::ranges::count_if(announced_, leaves));
  const std::size_t most = roster_.max_members();
  const std::size_t room = most - std::min(most, slots_.size());  // beside members and those that wait already
  return leaving + std::min(announced_.size() - leaving, room);
}

void ElasticHub::tell_announced(rendezvous::Server& server) {
  told_ = announced();
  const control::Announced count{static_cast<std::uint32_t>(told_)};
  for (const auto& [peer, slot] : slots_) {
    if (std::ranges::count(seats_, slot) != 0) {
      server.notify(peer, control::encode(control::RosterNotice(count)));
    }
  }
}

void ElasticHub::begin(rendezvous::Server& server, int ranks) {
  for (Rank slot = ranks; slot < places_; ++slot) {
    remaining_.erase(slot);
    roster_.on_expected(slot, false, loop_.now());
  }
  act(server);
}

// Notes that a slot has no member any more, or that no process of the start comes there, and returns whether that is
// new. This ends the announcement of its process. That of a process which has not joined ended with its arrival, and
// the slot may have another one since.
bool ElasticHub::vacate(Rank slot) {
  const bool counted = remaining_.erase(slot) != 0;
  if (counted) {
    announced_.erase(slot);
  }
  return counted;
}

// Notes a loss. Returns whether the slot had a member, or a process of the start was expected there.
bool ElasticHub::lose(Rank slot, const Status& cause) {
  const bool counted = vacate(slot);
  if (counted) {
    losses_.emplace_back(slot, cause);
  }
  return counted;
}

// The loss of a process that has not joined yet changes nothing for the others, but its place is free.
void ElasticHub::lose_process(Rank slot, const Status& cause) {
  if (!lose(slot, cause) && grows()) {
    events_.new_rank({slot, NewRank::Stage::kLost, std::string(cause.text()), {}, 0});
  }
}

// Processes may come for all slots that are free after the start, also for those that were late or have failed at it.
void ElasticHub::expect_others() {
  for (Rank slot = 0; slot < places_; ++slot) {
    if (!is_connected(slot)) {
      roster_.on_expected(slot, grows(), loop_.now());
    }
  }
}

// ---- actions of the roster ----

void ElasticHub::act(rendezvous::Server& server) {
  for (auto actions = roster_.take_actions(); !actions.empty(); actions = roster_.take_actions()) {
    for (const Roster::Action& action : actions) {
      std::visit([&](const auto& what) { perform(server, what); }, action);
    }
    for (const std::string& host : std::exchange(closed_hosts_, {})) {
      lose_neighbours(server, host);
    }
  }
  if (roster_.phase() != Roster::Phase::kRunning) {
    end_epoch(server);
  }
  events_.connected(static_cast<int>(slots_.size()));
  if (const bool admits = roster_.epoch() != Epoch() && !over_ && roster_.admits(); admits != admits_) {
    events_.admits(admits_ = admits);
  }
  if (grows() && in_epoch_ && told_ != announced()) {
    tell_announced(server);
  }
  tell_owner();
  loop_.cancel(std::exchange(tick_, {}));
  if (const auto next = roster_.next_tick()) {
    tick_ = loop_.after(*next - loop_.now(), [this, &server] {
      tick_ = {};
      roster_.on_tick(loop_.now());
      act(server);
    });
  }
}

void ElasticHub::perform(rendezvous::Server& server, const Roster::Send& send) {
  if (const auto* ends = std::get_if<control::EpochEnds>(&send.notice)) {
    cause_ = cause_.value_or(ends->lost);
  } else if (std::holds_alternative<control::ChangeWanted>(send.notice)) {
    server.notify(peer_of(send.to), control::encode(send.notice));
  } else if (const auto* job = std::get_if<control::JobEnds>(&send.notice)) {
    // Others learn it from the end of their epoch, or when they ask for the next one.
    if (const PeerId peer = peer_of(send.to); waiting_.count(peer) != 0) {
      forget(peer);
      server.dismiss(peer, over_.value_or(job->why));
    }
  }
}

void ElasticHub::perform(rendezvous::Server& server, const Roster::Close& close) {
  const PeerId peer = peer_of(close.connection);
  if (const auto found = slots_.find(peer); found != slots_.end()) {
    lose(found->second, close.why);
  }
  if (const std::string host = host_of(peer); !host.empty() && close.why.code() != Code::kShutdown) {
    closed_hosts_.insert(host);  // its other processes are lost later: the next action may form an epoch with them
  }
  forget(peer);
  server.dismiss(peer, close.why);
}

void ElasticHub::perform(rendezvous::Server& server, const Roster::Form& form) {
  end_epoch(server);
  std::vector<PeerId> peers;
  seats_.clear();
  for (const Connection connection : form.members) {
    peers.push_back(peer_of(connection));
    waiting_.erase(peers.back());
    seats_.push_back(slots_.at(peers.back()));
  }
  for (const Rank slot : std::set<Rank>(remaining_)) {
    if (std::ranges::find(seats_, slot) == seats_.end()) {
      const std::string who = "rank " + std::to_string(slot);
      lose(slot, {Code::kTimeout, who + " has not come to the start of the job in time", {slot, ""}});
    }
  }
  expect_others();
  remaining_.insert(seats_.begin(), seats_.end());
  cause_.reset();
  in_epoch_ = true;
  std::vector<std::vector<std::byte>> notices;
  for (control::EpochFormed notice = form.notice; notices.size() < peers.size();) {
    notice.rank = static_cast<Rank>(notices.size());
    notices.push_back(control::encode(control::RosterNotice(notice)));
  }
  const rendezvous::Membership membership = server.form(form.epoch, peers, notices);
  names_.clear();
  for (const rendezvous::Member& member : membership.members) {
    names_.push_back(rendezvous::rank_text(member.rank, member.hostname, member.pid));
  }
  if (grows()) {
    tell_announced(server);
  }
  tell_owner();  // the losses and departures that have brought the epoch about
  events_.formed(membership);
  tell_joined(form.notice, membership);
}

void ElasticHub::tell_joined(const control::EpochFormed& formed, const rendezvous::Membership& membership) {
  for (std::size_t rank = 0; rank < seats_.size() && formed.epoch != Epoch(1); ++rank) {
    const rendezvous::Member& member = membership.members[rank];
    if (formed.seats[rank].old_rank < 0) {
      events_.new_rank({seats_[rank], NewRank::Stage::kJoined,
                        rendezvous::rank_text(member.rank, member.hostname, member.pid), formed.epoch,
                        membership.size()});
    }
  }
}

void ElasticHub::perform(rendezvous::Server& server, const Roster::Part& part) {
  const PeerId peer = peer_of(part.connection);
  // The blame tells the process that it has left, where the end of the job blames nobody.
  const Status why(Code::kShutdown, names_.at(static_cast<std::size_t>(part.rank)) + " has left in order",
                   {part.rank, ""});
  const Rank slot = slots_.at(peer);
  vacate(slot);
  departures_.emplace_back(slot, why);
  forget(peer);
  server.dismiss(peer, why);
}

void ElasticHub::perform(rendezvous::Server& /*server*/, const Roster::End& end) {
  over_ = end.why;
}

void ElasticHub::end_epoch(rendezvous::Server& server) {
  if (!std::exchange(in_epoch_, false)) {
    return;
  }
  events_.ended();
  if (!cause_ && !over_) {
    const std::string next = std::to_string(roster_.epoch().value + 1);
    return server.end_epoch(-1, {Code::kRanksChanged, "other ranks join or leave; epoch " + next + " begins"});
  }
  const control::LostRank lost = cause_.value_or(control::LostRank());
  const Rank blamed = lost.cause.blame().rank < 0 ? lost.rank : lost.cause.blame().rank;
  const std::string next = prospect(Epoch(roster_.epoch().value + 1));
  server.end_epoch(lost.rank, {Code::kRanksChanged, std::string(lost.cause.text()) + "; " + next, {blamed, ""}});
}

// Describes what follows a loss, where `next` is the epoch that the survivors form if there are enough of them.
std::string ElasticHub::prospect(Epoch next) const {
  if (over_) {
    return std::string(over_->text());
  }
  if (roster_.phase() == Roster::Phase::kWaiting && roster_.epoch() != Epoch()) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.wait_timeout).count();
    return "too few ranks: " + std::to_string(remaining_.size()) + " of at least " + std::to_string(options_.min) +
           " (elastic.min)" + (roster_.admits() ? "; waiting " + std::to_string(seconds) + " s for more" : "");
  }
  return go_on_text(static_cast<int>(remaining_.size()), next);
}

void ElasticHub::tell_owner() {
  if (!arrived_) {
    return;  // programs that never come are not lost: their exit codes decide about the job
  }
  const Epoch next = over_ ? Epoch() : Epoch(roster_.epoch().value + (in_epoch_ ? 0 : 1));
  const auto survive = [&](const std::pair<Rank, Status>& gone) {
    const int remaining = static_cast<int>(remaining_.size());
    events_.survived({gone.first, gone.second, next, remaining, over_ ? "" : prospect(next)});
  };
  std::ranges::for_each(std::exchange(departures_, {}), survive);
  for (const auto& loss : std::exchange(losses_, {})) {
    over_ && over_->code() != Code::kShutdown ? events_.lost(loss.first, loss.second) : survive(loss);
  }
  if (over_ && !std::exchange(told_over_, true) && events_.over) {
    events_.over(*over_);
  }
}

}  // namespace sirtaki::hub
