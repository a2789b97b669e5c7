// The part of ServerImpl for elastic jobs: connections for life, and epochs that the handler forms and ends.
#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/rendezvous/server_impl.h"

namespace sirtaki::rendezvous {

// round_ holds the last request of each connected peer, under its slot.
void ServerImpl::on_arrival(Peer& peer, JoinRequest request) {
  if (peer.state == Peer::State::kWaiting) {
    return broke_protocol(peer, "it joined twice");
  }
  if (peer.state == Peer::State::kGuest) {
    if (const Status status = admit(request); !status.ok()) {
      handler_.on_warning("a process was refused: " + std::string(status.text()));
      return reject(peer, status);
    }
    exits_.erase(request.rank);
    peer.rank = peer.slot = request.rank;
    peer.hostname = request.hostname;
    peer.pid = request.pid;
  } else {
    leave_seat(peer);
    round_.remove(peer.slot);
  }
  request.rank = peer.slot;
  const std::vector<std::byte> report = std::move(request.report);
  request.report.clear();
  round_.add(std::move(request));
  peer.state = Peer::State::kWaiting;
  handler_.on_waiting(peer.id, peer.slot, report);
}

Status ServerImpl::admit(const JoinRequest& request) const {
  if (epoch_.value != 0 && !options_.grows) {
    return {Code::kUnsupported,
            rank_text(request.rank, request.hostname, request.pid) +
                " cannot join: the job runs already, and ranks can leave it but none can join it (elastic.max)",
            {request.rank, ""}};
  }
  SRT_TRY(round_.check(request));
  return round_.agrees(request);
}

void ServerImpl::leave_seat(Peer& peer) {
  if (peer.state == Peer::State::kMember) {
    members_[static_cast<std::size_t>(peer.rank)] = nullptr;
    --alive_;
  }
}

Peer* ServerImpl::find(PeerId id) const {
  const auto found = std::ranges::find_if(peers_, [id](const auto& entry) { return entry.first->id == id; });
  return found == peers_.end() ? nullptr : found->first;
}

Membership ServerImpl::form(Epoch epoch, const std::vector<PeerId>& peers,
                            const std::vector<std::vector<std::byte>>& notices) {
  SRT_IN_LOOP(loop_);
  SRT_CHECK(!in_epoch_ && notices.size() == peers.size());
  notify_departures();
  std::map<PeerId, Peer*> by_id;
  for (const auto& [peer, owned] : peers_) {
    by_id.emplace(peer->id, peer);
  }
  epoch_ = epoch;
  in_epoch_ = true;
  alive_ = static_cast<int>(peers.size());
  members_.clear();
  std::vector<Rank> slots;
  for (const PeerId id : peers) {
    Peer* peer = by_id.at(id);
    SRT_CHECK(peer->state == Peer::State::kWaiting);
    peer->state = Peer::State::kMember;
    peer->rank = static_cast<Rank>(members_.size());
    members_.push_back(peer);
    slots.push_back(peer->slot);
  }
  Membership membership = round_.form(epoch, slots);
  const std::vector<std::byte> bytes = encode(membership);
  for (const Peer* peer : members_) {
    peer->link->send(FrameType::kSeat, encode_seat(peer->rank, notices[static_cast<std::size_t>(peer->rank)], bytes));
  }
  return membership;
}

void ServerImpl::notify(PeerId id, ConstBytes notice) {
  SRT_IN_LOOP(loop_);
  if (Peer* peer = find(id); peer != nullptr && peer->state == Peer::State::kMember) {
    peer->link->send(FrameType::kNotice, notice);
  }
}

void ServerImpl::end_epoch(Rank lost, const Status& why) {
  SRT_IN_LOOP(loop_);
  if (!std::exchange(in_epoch_, false)) {
    return;
  }
  notify_departures();
  broadcast(FrameType::kLost, encode_lost(lost, why));
  for (Peer* peer : std::exchange(members_, {})) {
    if (peer != nullptr) {
      peer->state = Peer::State::kIdle;
    }
  }
  alive_ = 0;
}

void ServerImpl::dismiss(PeerId id, const Status& why) {
  SRT_IN_LOOP(loop_);
  Peer* peer = find(id);
  if (peer == nullptr) {
    return;
  }
  if (peer->state == Peer::State::kWaiting) {
    return reject(*peer, why);
  }
  peer->link->send(FrameType::kLost, encode_lost(peer->rank, why));
  forget(*peer);
}

}  // namespace sirtaki::rendezvous
