#include "runtime/hub/elastic_hub.h"

#include <algorithm>
#include <utility>

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

ElasticHub::ElasticHub(Loop& loop, control::RosterOptions options, Events events)
    : loop_(loop), roster_(options), events_(std::move(events)) {
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
    roster_.on_hello(connection_of(peer), {slot, 0}, loop_.now());
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
  roster_.on_regroup(connection_of(peer), regroup, loop_.now());
  act(server);
}

void ElasticHub::on_quit(rendezvous::Server& server, PeerId peer, bool at_end) {
  const Rank slot = slots_.at(peer);
  remaining_.erase(slot);
  if (!at_end) {
    lose(slot, {Code::kPeerLost, "rank " + std::to_string(slot) + " has not waited for the next epoch", {slot, ""}});
  }
  slots_.erase(peer);
  waiting_.erase(peer);
  roster_.on_departure(connection_of(peer), {at_end}, loop_.now());
  act(server);
}

void ElasticHub::on_gone(rendezvous::Server& server, PeerId peer, const Status& cause) {
  lose(slots_.at(peer), cause);
  slots_.erase(peer);
  waiting_.erase(peer);
  roster_.on_lost(connection_of(peer), cause, loop_.now());
  act(server);
}

void ElasticHub::on_absent(rendezvous::Server& server, Rank slot, const Status& cause) {
  if (remaining_.count(slot) != 0) {
    lose(slot, cause);
    roster_.on_expected(slot, false, loop_.now());
    act(server);
  }
}

void ElasticHub::lose(Rank slot, const Status& cause) {
  remaining_.erase(slot);
  losses_.emplace_back(slot, cause);
}

// ---- actions of the roster ----

void ElasticHub::act(rendezvous::Server& server) {
  for (auto actions = roster_.take_actions(); !actions.empty(); actions = roster_.take_actions()) {
    for (const Roster::Action& action : actions) {
      std::visit([&](const auto& what) { perform(server, what); }, action);
    }
  }
  if (roster_.phase() != Roster::Phase::kRunning) {
    end_epoch(server);
  }
  events_.connected(static_cast<int>(slots_.size()));
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
  } else if (const auto* job = std::get_if<control::JobEnds>(&send.notice)) {
    // Others learn it from the end of their epoch, or when they ask for the next one.
    if (const PeerId peer = peer_of(send.to); waiting_.erase(peer) != 0) {
      slots_.erase(peer);
      server.dismiss(peer, over_.value_or(job->why));
    }
  }
}

void ElasticHub::perform(rendezvous::Server& server, const Roster::Close& close) {
  const PeerId peer = peer_of(close.connection);
  if (const auto found = slots_.find(peer); found != slots_.end()) {
    lose(found->second, close.why);
    slots_.erase(found);
  }
  waiting_.erase(peer);
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
      roster_.on_expected(slot, false, loop_.now());
    }
  }
  cause_.reset();
  in_epoch_ = true;
  std::vector<std::vector<std::byte>> notices;
  for (control::EpochFormed notice = form.notice; notices.size() < peers.size();) {
    notice.rank = static_cast<Rank>(notices.size());
    notices.push_back(control::encode(control::RosterNotice(notice)));
  }
  events_.formed(server.form(form.epoch, peers, notices));
}

void ElasticHub::perform(rendezvous::Server& /*server*/, const Roster::End& end) {
  over_ = end.why;
}

void ElasticHub::end_epoch(rendezvous::Server& server) {
  if (!std::exchange(in_epoch_, false)) {
    return;
  }
  events_.ended();
  const control::LostRank lost = cause_.value_or(control::LostRank());  // nobody is left to be told if there is none
  const Rank blamed = lost.cause.blame().rank < 0 ? lost.rank : lost.cause.blame().rank;
  server.end_epoch(lost.rank, {Code::kRanksChanged, std::string(lost.cause.text()) + "; " + outlook(), {blamed, ""}});
}

// Describes what follows the end of an epoch.
std::string ElasticHub::outlook() const {
  if (over_) {
    return std::string(over_->text());
  }
  return go_on_text(static_cast<int>(remaining_.size()), Epoch(roster_.epoch().value + 1));
}

void ElasticHub::tell_owner() {
  if (!arrived_) {
    return;  // programs that never come are not lost: their exit codes decide about the job
  }
  for (const auto& [slot, cause] : std::exchange(losses_, {})) {
    const bool at_end = over_ && over_->code() == Code::kShutdown;
    if (over_ && !at_end) {
      events_.lost(slot, cause);
    } else {
      const Epoch next = at_end ? Epoch() : Epoch(roster_.epoch().value + (in_epoch_ ? 0 : 1));
      events_.survived({slot, cause, next, static_cast<int>(remaining_.size())});
    }
  }
  if (over_ && !std::exchange(told_over_, true) && events_.over) {
    events_.over(*over_);
  }
}

}  // namespace sirtaki::hub
