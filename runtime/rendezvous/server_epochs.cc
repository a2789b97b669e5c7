#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/wire.h"
#include "runtime/rendezvous/server_impl.h"

namespace sirtaki::rendezvous {

namespace {

// All ranks leave at nearly the same time at the end of a job. Collecting leaves for this long avoids a notice to every
// rank for every other rank.
constexpr Duration kLeaveLinger = std::chrono::milliseconds(20);

}  // namespace

void ServerImpl::on_join(Peer& peer, ConstBytes payload) {
  auto request = decode_join_request(payload);
  if (request && options_.elastic) {
    return on_arrival(peer, *std::move(request));
  }
  if (!request || peer.state != Peer::State::kGuest) {
    return broke_protocol(peer, request ? "it joined twice" : std::string(request.status().text()));
  }
  peer.rank = peer.slot = request->rank;
  peer.hostname = request->hostname;
  peer.pid = request->pid;
  exits_.erase(peer.rank);
  if (gets_old_verdict(peer)) {
    return;
  }
  if (const Status status = round_.check(*request); !status.ok()) {
    fail_round(status);
    note_notified(peer.rank);
    return reject(peer, status);
  }
  const bool first = round_.is_empty();
  round_.add(std::move(*request));
  waiting_[static_cast<std::size_t>(peer.rank)] = &peer;
  peer.state = Peer::State::kWaiting;
  if (first) {
    join_deadline_ = loop_.now() + options_.join_timeout;
    arm_join_timer();
  }
  if (const Status status = exited_rank(); !status.ok() && !in_epoch_) {
    return fail_round(status);
  }
  try_form();
}

// Late ranks of a failed attempt get the same error, instead of waiting for ranks that are gone. Returns true if so.
bool ServerImpl::gets_old_verdict(Peer& peer) {
  if (old_verdict_.ok()) {
    return false;
  }
  // A rank that has received the error, or whose end caused it, joins again only if it was restarted.
  const bool restarted = notified_.count(peer.rank) != 0 ||
                         (old_verdict_.code() == Code::kPeerLost && old_verdict_.blame().rank == peer.rank);
  if (restarted || loop_.now() >= old_verdict_ends_) {
    old_verdict_ = Status();
    return false;
  }
  reject(peer, old_verdict_);
  note_notified(peer.rank);
  return true;
}

void ServerImpl::note_notified(Rank rank) {
  if (rank >= 0 && rank < options_.size) {
    notified_.insert(rank);
  }
  if (static_cast<int>(notified_.size()) >= options_.size) {
    old_verdict_ = Status();
  }
}

Status ServerImpl::exited_rank() const {
  for (const Rank rank : round_.absent()) {
    const auto exit = exits_.find(rank);
    if (exit != exits_.end()) {
      return {Code::kPeerLost,
              "rank " + std::to_string(rank) + " cannot join, its process has ended: " + exit->second,
              {rank, ""}};
    }
  }
  return {};
}

void ServerImpl::try_form() {
  if (in_epoch_ || !round_.is_full()) {
    return;
  }
  if (const Status status = round_.agreement(); !status.ok()) {
    return fail_round(status);
  }
  loop_.cancel(join_timer_);
  ++epoch_.value;
  in_epoch_ = true;
  alive_ = options_.size;
  const Membership membership = round_.form(epoch_);
  round_.clear();
  members_.swap(waiting_);
  for (Peer* peer : members_) {
    peer->state = Peer::State::kMember;
  }
  broadcast(FrameType::kJoined, encode(membership));
  handler_.on_epoch(membership);
}

void ServerImpl::fail_round(const Status& why) {
  loop_.cancel(join_timer_);
  old_verdict_ = why;
  old_verdict_ends_ = loop_.now() + options_.join_timeout;
  notified_.clear();
  for (Peer* peer : std::vector<Peer*>(waiting_)) {
    if (peer != nullptr) {
      const Rank rank = peer->rank;
      reject(*peer, why);
      note_notified(rank);
    }
  }
  handler_.on_warning("no epoch: " + std::string(why.text()));
}

void ServerImpl::reject(Peer& peer, const Status& why) {
  WireWriter out;
  put_status(out, why);
  peer.link->send(FrameType::kRejected, out.bytes());
  forget(peer);
}

void ServerImpl::arm_join_timer() {
  loop_.cancel(join_timer_);
  join_timer_ = loop_.after(join_deadline_ - loop_.now(), [this] { on_join_timeout(); });
}

void ServerImpl::on_join_timeout() {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.join_timeout).count();
  const std::string within = " within " + std::to_string(seconds) + " s";
  if (in_epoch_) {
    std::vector<Rank> running;
    for (const Peer* member : members_) {
      if (member != nullptr) {
        running.push_back(member->rank);
      }
    }
    return fail_round({Code::kTimeout,
                       "epoch " + std::to_string(epoch_.value) + " did not end" + within + ": " + ranks_text(running) +
                           " did not leave it; fix: shut down on all ranks before any of them starts again",
                       {running.front(), ""}});
  }
  const std::vector<Rank> absent = round_.absent();
  std::string text = ranks_text(absent) + " did not join" + within + " (" +
                     std::to_string(options_.size - static_cast<int>(absent.size())) + " of " +
                     std::to_string(options_.size) +
                     " did); fix: look at the output of those processes, and check that " +
                     "they were started and can reach this server";
  if (const Status disagreement = round_.agreement(); !disagreement.ok()) {
    text += "; besides, " + std::string(disagreement.text());
  }
  fail_round({Code::kTimeout, std::move(text), {absent.front(), ""}});
}

void ServerImpl::on_leave(Peer& peer) {
  const Peer::State before = peer.state;
  const Rank rank = peer.rank;
  const std::string text = peer.text();
  const bool announced = peer.announced;
  const PeerId id = peer.id;
  peer.link->send(FrameType::kLeaveOk, {});
  forget(peer);
  if (before == Peer::State::kMember) {
    member_left(rank, announced);
  }
  if (options_.elastic) {
    return before == Peer::State::kGuest ? void() : handler_.on_quit(id, before != Peer::State::kWaiting);
  }
  if (before == Peer::State::kWaiting) {
    fail_round({Code::kPeerLost, text + " gave up before all ranks had joined", {rank, ""}});
    note_notified(rank);
  }
}

void ServerImpl::member_lost(Rank rank, const Status& cause) {
  notify_departures();
  broadcast(FrameType::kLost, encode_lost(rank, cause));
  handler_.on_lost(rank, cause);
  end_epoch_if_empty();
}

void ServerImpl::member_left(Rank rank, bool announced) {
  if (!announced) {
    departed_.push_back(rank);
  }
  left_.push_back(rank);
  if (alive_ == 0) {
    notify_departures();
    end_epoch_if_empty();
  } else {
    notify_departures_soon();
  }
}

void ServerImpl::announce_leave(Rank rank) {
  SRT_IN_LOOP(loop_);
  SRT_CHECK(rank >= 0 && rank < options_.size);
  Peer* peer = member(rank);
  if (peer != nullptr && !std::exchange(peer->announced, true)) {
    departed_.push_back(rank);
    notify_departures_soon();
  }
}

void ServerImpl::notify_departures_soon() {
  if (departures_ == TimerId()) {
    departures_ = loop_.after(kLeaveLinger, [this] { notify_departures(); });
  }
}

void ServerImpl::notify_departures() {
  loop_.cancel(std::exchange(departures_, {}));
  if (const std::vector<Rank> departed = std::exchange(departed_, {}); !departed.empty()) {
    broadcast(FrameType::kLeft, encode_left(departed));
  }
  for (const Rank rank : std::exchange(left_, {})) {
    handler_.on_left(rank);
  }
}

void ServerImpl::broadcast(FrameType type, ConstBytes payload) {
  for (Peer* member : members_) {
    if (member != nullptr && !member->ended) {
      member->link->send(type, payload);
    }
  }
}

void ServerImpl::end_epoch_if_empty() {
  if (!in_epoch_ || alive_ > 0) {
    return;
  }
  in_epoch_ = false;
  handler_.on_epoch_end();
  if (options_.elastic) {
    return;
  }
  if (const Status status = exited_rank(); !status.ok() && !round_.is_empty()) {
    return fail_round(status);
  }
  try_form();
}

}  // namespace sirtaki::rendezvous
