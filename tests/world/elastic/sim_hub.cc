#include "tests/world/elastic/sim_hub.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::world {
namespace {

constexpr Duration kDepartureLinger = std::chrono::milliseconds(20);  // same as in the server

}  // namespace

SimHub::SimHub(Deps deps, control::RosterOptions options, int places)
    : deps_(std::move(deps)),
      options_(options),
      loop_(deps_.clock.make_loop()),
      hub_(*loop_, options, places,
           {.formed =
                [this](const rendezvous::Membership& membership) {
                  coordinator_ = std::make_unique<control::Coordinator>(membership.size(), control::StallOptions());
                },
            .ended =
                [this] {
                  coordinator_.reset();
                  loop_->cancel(std::exchange(tick_, {}));
                },
            .survived = [](const hub::Survived&) {},
            .new_rank = [](const hub::NewRank&) {},
            .admits = [](bool) {},
            .lost = [](Rank, const Status&) {},
            .over =
                [this](const Status& why) {
                  if (over_) {
                    deps_.broken("V9: the end of the job is reported twice");
                  }
                  over_ = why;
                },
            .connected = [](int) {}}) {}

SimHub::~SimHub() {
  loop_->kill();
}

// ---- messages ----

// Delays of zero are posted, so that the order of loops decides; others keep the order of the connection.
void SimHub::carry(SimLoop& loop, TimePoint& last, Duration delay, Task task) {
  const TimePoint now = deps_.clock.now();
  if (delay == Duration(0) && last < now) {
    loop.post(std::move(task));
    return;
  }
  last = std::max(last + Duration(1), now + delay);
  loop.after(last - now, std::move(task));
}

void SimHub::up(PeerId peer, Task task) {
  carry(*loop_, last_up_[peer], deps_.delay(), std::move(task));
}

void SimHub::tell(Peer& peer, std::function<void(HubClient&)> call) {
  carry(peer.client->control_loop(), peer.last_down, deps_.delay(),
        [client = peer.client, call = std::move(call)] { call(*client); });
}

void SimHub::tell_members(const std::function<void(HubClient&)>& call) {
  for (const PeerId member : members_) {
    if (Peer* peer = find(member)) {
      tell(*peer, call);
    }
  }
}

bool SimHub::ends_without(PeerId peer) const {
  return !in_epoch_ || std::ranges::find(members_, peer) != members_.end();
}

SimHub::Peer* SimHub::find(PeerId peer) {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second;
}

// ---- calls of processes ----

rendezvous::PeerId SimHub::connect(HubClient& client, Rank slot) {
  const PeerId id(next_peer_++);
  peers_[id] = {id, &client, slot, -1, State::kGuest, {}};
  return id;
}

void SimHub::join(PeerId id, std::vector<std::byte> report) {
  up(id, [this, id, report = std::move(report)] {
    if (Peer* peer = find(id)) {
      on_join(*peer, report);
    }
  });
}

void SimHub::message(PeerId id, std::vector<std::byte> message) {
  up(id, [this, id, message = std::move(message)] {
    if (Peer* peer = find(id); peer != nullptr && peer->state == State::kMember) {
      on_message(peer->rank, message);
    }
  });
}

void SimHub::report(PeerId id, std::vector<std::byte> report) {
  up(id, [this, id, report = std::move(report)] {
    if (Peer* peer = find(id); peer != nullptr && peer->state == State::kMember) {
      hub_.on_report(*this, id, report);
    }
  });
}

void SimHub::leave(PeerId id) {
  up(id, [this, id] {
    if (Peer* peer = find(id)) {
      on_leave(*peer);
    }
  });
}

void SimHub::end(PeerId id, Duration after, const std::string& what) {
  carry(*loop_, last_up_[id], after, [this, id, what] {
    Peer* peer = find(id);
    if (peer == nullptr) {
      return;
    }
    const Rank slot = peer->slot;
    const Status cause(Code::kPeerLost, "the process of slot " + std::to_string(slot) + " ended: " + what,
                       {peer->rank, ""});
    if (peer->state != State::kGuest) {
      return on_end(*peer, cause);
    }
    forget(*peer);
    hub_.on_absent(*this, slot, cause);
  });
}

void SimHub::silence(PeerId id) {
  loop_->post([this, id] {
    if (Peer* peer = find(id); peer != nullptr && peer->state != State::kGuest) {
      on_end(*peer, {Code::kPeerLost, "rank " + std::to_string(peer->rank) + " has been silent", {peer->rank, ""}});
    }
  });
}

// ---- events of the server ----

void SimHub::on_join(Peer& peer, const std::vector<std::byte>& report) {
  SRT_CHECK(peer.state != State::kWaiting);
  if (peer.state == State::kGuest && epoch_.value != 0 && options_.max == 0) {
    tell(peer, [](HubClient& client) {
      client.on_rejected({Code::kUnsupported, "the job runs already, and ranks can leave it but none can join it"});
    });
    return forget(peer);
  }
  if (peer.state == State::kGuest) {
    peer.rank = peer.slot;
  } else {
    leave_seat(peer);
  }
  peer.state = State::kWaiting;
  hub_.on_waiting(*this, peer.id, peer.slot, report);
}

void SimHub::on_message(Rank from, ConstBytes bytes) {
  const auto message = control::decode_member_message(bytes);
  SRT_CHECK(message.ok());
  if (const auto* broken = std::get_if<control::JobBroken>(&*message)) {
    deps_.broken("an engine ends the job: " + broken->status.to_string());
  } else if (coordinator_) {
    coordinator_->on_message(from, *message, loop_->now());
    act();
  }
}

void SimHub::on_leave(Peer& peer) {
  const State before = peer.state;
  const Rank rank = peer.rank;
  const PeerId id = peer.id;
  tell(peer, [](HubClient& client) { client.on_leave_ok(); });
  forget(peer);
  if (before == State::kMember) {
    member_left(rank);
  }
  if (before != State::kGuest) {
    hub_.on_quit(*this, id, before != State::kWaiting);
  }
}

void SimHub::on_end(Peer& peer, const Status& cause) {
  const PeerId id = peer.id;
  const bool guest = peer.state == State::kGuest;
  tell(peer, [rank = peer.rank, cause](HubClient& client) { client.on_lost(rank, cause); });
  forget(peer);
  if (!guest) {
    hub_.on_gone(*this, id, cause);
  }
}

void SimHub::member_left(Rank rank) {
  departed_.push_back(rank);
  if (std::ranges::all_of(members_, [](PeerId id) { return id == PeerId(); })) {
    notify_departures();
    in_epoch_ = false;
    coordinator_.reset();
    loop_->cancel(std::exchange(tick_, {}));
  } else if (departures_ == TimerId()) {
    departures_ = loop_->after(kDepartureLinger, [this] { notify_departures(); });
  }
}

void SimHub::notify_departures() {
  loop_->cancel(std::exchange(departures_, {}));
  for (const Rank rank : std::exchange(departed_, {})) {
    tell_members([rank](HubClient& client) { client.on_left(rank); });
    if (coordinator_) {
      coordinator_->on_left(rank, loop_->now());
      act();
    }
  }
}

void SimHub::leave_seat(Peer& peer) {
  if (peer.state == State::kMember) {
    members_[static_cast<std::size_t>(peer.rank)] = PeerId();
  }
}

void SimHub::forget(Peer& peer) {
  leave_seat(peer);
  peers_.erase(PeerId(peer.id));
}

// ---- calls of the hub ----

void SimHub::send(Rank to, ConstBytes message) {
  const auto at = static_cast<std::size_t>(to);
  if (Peer* peer = at < members_.size() ? find(members_[at]) : nullptr) {
    tell(*peer, [bytes = std::vector<std::byte>(message.begin(), message.end())](HubClient& client) {
      client.on_message(bytes);
    });
  }
}

rendezvous::Membership SimHub::form(Epoch epoch, const std::vector<PeerId>& peers,
                                    const std::vector<std::vector<std::byte>>& notices) {
  if (in_epoch_ || epoch.value != epoch_.value + 1) {
    deps_.broken("V2: epoch " + std::to_string(epoch.value) + " follows epoch " + std::to_string(epoch_.value));
  }
  notify_departures();
  epoch_ = epoch;
  in_epoch_ = true;
  members_ = peers;
  rendezvous::Membership membership;
  membership.epoch = epoch;
  for (const PeerId id : peers) {
    Peer* peer = find(id);
    if (peer == nullptr || peer->state != State::kWaiting) {
      deps_.broken("V2: a member of epoch " + std::to_string(epoch.value) + " does not wait for it");
      continue;
    }
    peer->state = State::kMember;
    peer->rank = static_cast<Rank>(membership.members.size());
    membership.members.push_back({peer->rank, "sim", "sim", static_cast<std::int64_t>(id.value), {}, {}});
  }
  for (const PeerId id : peers) {
    if (Peer* peer = find(id)) {
      const std::vector<std::byte>& notice = notices[static_cast<std::size_t>(peer->rank)];
      tell(*peer,
           [rank = peer->rank, notice, membership](HubClient& client) { client.on_seat(rank, notice, membership); });
    }
  }
  return membership;
}

void SimHub::notify(PeerId id, ConstBytes notice) {
  if (Peer* peer = find(id); peer != nullptr && peer->state == State::kMember) {
    tell(*peer, [bytes = std::vector<std::byte>(notice.begin(), notice.end())](HubClient& client) {
      client.on_notice(bytes);
    });
  }
}

void SimHub::end_epoch(Rank lost, const Status& why) {
  if (!std::exchange(in_epoch_, false)) {
    return;
  }
  notify_departures();
  tell_members([lost, why](HubClient& client) { client.on_lost(lost, why); });
  for (const PeerId id : std::exchange(members_, {})) {
    if (Peer* peer = find(id)) {
      peer->state = State::kIdle;
    }
  }
}

void SimHub::dismiss(PeerId id, const Status& why) {
  Peer* peer = find(id);
  if (peer == nullptr) {
    return;
  }
  if (peer->state == State::kWaiting) {
    tell(*peer, [why](HubClient& client) { client.on_rejected(why); });
  } else {
    tell(*peer, [rank = peer->rank, why](HubClient& client) { client.on_lost(rank, why); });
  }
  forget(*peer);
}

// ---- coordinator ----

void SimHub::act() {
  control::Coordinator::Actions actions = coordinator_->take_actions();
  for (const control::Coordinator::Send& action : actions.sends) {
    const std::vector<std::byte> bytes = control::encode(action.message);
    for (const Rank rank : action.to.ranks()) {
      send(rank, bytes);
    }
  }
  schedule_tick();
}

void SimHub::schedule_tick() {
  loop_->cancel(std::exchange(tick_, {}));
  if (const auto next = coordinator_->next_tick()) {
    tick_ = loop_->after(*next - loop_->now(), [this] {
      tick_ = {};
      coordinator_->on_tick(loop_->now());
      act();
    });
  }
}

}  // namespace sirtaki::world
