#include "runtime/rendezvous/server.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/wire.h"
#include "runtime/rendezvous/link/asio_context.h"
#include "runtime/rendezvous/link/sockets.h"
#include "runtime/rendezvous/server_impl.h"

namespace sirtaki::rendezvous {

namespace {

// Extra round trips after a connection, so that the clock offset is good before the first heartbeat interval ends.
constexpr std::size_t kFirstPings = 4;
// The end of a process closes its socket, and its last bytes are read within this time. A socket that is still open
// then is held by a child of the process.
constexpr Duration kExitDrain = std::chrono::milliseconds(20);

}  // namespace

void Peer::on_frame(const Frame& frame) {
  server.on_frame(*this, frame);
}

void Peer::on_end(const Status& cause) {
  server.on_end(*this, cause);
}

std::string Peer::text() const {
  return state == State::kGuest ? "a connection from " + address : rank_text(rank, hostname, pid);
}

Result<std::unique_ptr<Server>> Server::start(AsioLoop& loop, ServerOptions options, ServerHandler& handler) {
  if (options.size < 1) {
    return invalid_argument("a job has at least one rank, not " + std::to_string(options.size));
  }
  if (options.heartbeat_interval <= Duration::zero() || options.heartbeat_timeout <= options.heartbeat_interval) {
    return invalid_argument("the heartbeat timeout must be longer than the heartbeat interval, and both above zero");
  }
  options.heartbeat_timeout = std::min(options.heartbeat_timeout, kLongestTimeout);
  options.join_timeout = std::min(options.join_timeout, kLongestTimeout);
  auto server = std::make_unique<ServerImpl>(loop, std::move(options), handler);
  SRT_TRY(server->open());
  return std::unique_ptr<Server>(std::move(server));
}

ServerImpl::ServerImpl(AsioLoop& loop, ServerOptions options, ServerHandler& handler)
    : loop_(loop),
      options_(std::move(options)),
      handler_(handler),
      members_(static_cast<std::size_t>(options_.size)),
      round_(options_.size, options_.elastic && options_.grows),
      waiting_(static_cast<std::size_t>(options_.size)) {}

Status ServerImpl::open() {
  GateOptions gate;
  gate.bind_address = options_.bind_address;
  gate.port_first = options_.port_first;
  gate.port_last = options_.port_last;
  gate.secret = options_.secret;
  gate.handshake_timeout = options_.handshake_timeout;
  gate.max_visitors = options_.max_unauthenticated + options_.size;
  SRT_ASSIGN(listener_, AuthListener::open(loop_, std::move(gate), *this));
  return {};
}

ServerImpl::~ServerImpl() {
  auto close_all = [this] {
    loop_.cancel(tick_);
    loop_.cancel(join_timer_);
    loop_.cancel(departures_);
    for (const auto& [key, peer] : peers_) {
      loop_.cancel(peer->verdict);
      peer->link->close();
    }
    peers_.clear();
    listener_.reset();
  };
  if (!loop_.run_sync(close_all)) {
    close_all();  // the loop has stopped, so its state belongs to this thread
  }
}

Peer* ServerImpl::find(Rank slot) const {
  if (options_.elastic) {
    const auto found =
        std::ranges::find_if(peers_, [slot](const auto& entry) { return entry.first->slot == slot && slot >= 0; });
    return found == peers_.end() ? nullptr : found->first;
  }
  if (slot < 0 || slot >= options_.size) {
    return nullptr;
  }
  const auto at = static_cast<std::size_t>(slot);
  return members_[at] != nullptr ? members_[at] : waiting_[at];
}

// Returns null for a rank that is gone, and in elastic jobs for one that the epoch does not have.
Peer* ServerImpl::member(Rank rank) const {
  const auto at = static_cast<std::size_t>(rank);
  return at < members_.size() ? members_[at] : nullptr;
}

void ServerImpl::send(FrameType type, Rank to, ConstBytes message) {
  SRT_IN_LOOP(loop_);
  SRT_CHECK(to >= 0 && to < options_.size);
  if (Peer* peer = member(to); peer != nullptr) {
    peer->link->send(type, message);
  }
}

Duration ServerImpl::clock_offset(Rank rank) const {
  SRT_IN_LOOP(loop_);
  SRT_CHECK(rank >= 0 && rank < options_.size);
  const Peer* peer = member(rank);
  return peer == nullptr ? Duration::zero() : peer->clock.offset();
}

void ServerImpl::on_guest(Guest guest) {
  set_control_options(guest.socket.native_handle(), options_.heartbeat_timeout);
  auto owned = std::make_unique<Peer>(*this, std::move(guest.address));
  Peer& peer = *owned;
  peer.id = PeerId(next_peer_++);
  peer.link = std::make_shared<Link>(loop_, std::move(guest.socket), peer);
  const bool first = peers_.empty();
  peers_.emplace(&peer, std::move(owned));
  if (first) {
    arm_tick(loop_.now() + options_.heartbeat_interval);
  }
  const auto link = peer.link;
  ping(peer);
  link->start(guest.following);
}

void ServerImpl::on_gate_warning(const std::string& line) {
  handler_.on_warning(line);
}

void ServerImpl::on_frame(Peer& peer, const Frame& frame) {
  switch (frame.type) {
    case FrameType::kJoin:
      return on_join(peer, frame.payload);
    case FrameType::kMessage:
      if (peer.state == Peer::State::kMember) {
        return handler_.on_message(peer.rank, frame.payload);
      }
      if (peer.state == Peer::State::kIdle) {
        return;  // sent before it knew that the epoch has ended
      }
      break;
    case FrameType::kTree:
      if (peer.state == Peer::State::kMember) {
        return handler_.on_tree(peer.rank, frame.payload);
      }
      if (peer.state == Peer::State::kIdle) {
        return;
      }
      break;
    case FrameType::kNotice:
      if (options_.elastic && peer.state == Peer::State::kMember) {
        return handler_.on_report(peer.id, frame.payload);
      }
      // One that waits may have sent it from another thread.
      if (peer.state == Peer::State::kIdle || (options_.elastic && peer.state == Peer::State::kWaiting)) {
        return;
      }
      break;
    case FrameType::kLeave:
      return on_leave(peer);
    case FrameType::kPong:
      return on_pong(peer, frame.payload);
    default:
      break;
  }
  broke_protocol(peer, "a frame of type " + std::to_string(static_cast<int>(frame.type)) + " came out of turn");
}

void ServerImpl::ping(Peer& peer) {
  const std::int64_t now = loop_.now().time_since_epoch().count();
  peer.link->send(FrameType::kPing, std::as_bytes(std::span(&now, 1)));
}

void ServerImpl::on_pong(Peer& peer, ConstBytes payload) {
  WireReader in(payload);
  const TimePoint sent{Duration(in.get<std::int64_t>())};
  const TimePoint theirs{Duration(in.get<std::int64_t>())};
  if (!in.finish("a heartbeat").ok()) {
    return broke_protocol(peer, "its heartbeat is cut short");
  }
  peer.clock.add(sent, loop_.now(), theirs);
  if (peer.clock.samples() < kFirstPings) {
    ping(peer);
  }
}

void ServerImpl::arm_tick(TimePoint next) {
  tick_due_ = next;
  tick_ = loop_.after(next - loop_.now(), [this] { on_tick(); });
}

void ServerImpl::on_tick() {
  const TimePoint now = loop_.now();
  // If this thread itself was late (stopped process, suspended host), bytes of the peers may be unread, and the peers
  // may have been suspended, too: each gets the full timeout again.
  if (now - tick_due_ > options_.heartbeat_interval) {
    awake_since_ = now;
  }
  TimePoint next = now + options_.heartbeat_interval;
  std::vector<Peer*> silent;
  for (const auto& [peer, owned] : peers_) {
    if (peer->ended) {
      continue;
    }
    const TimePoint expires = std::max(peer->link->last_received(), awake_since_) + options_.heartbeat_timeout;
    if (expires <= now) {
      silent.push_back(peer);
      continue;
    }
    ping(*peer);
    next = std::min(next, expires);
  }
  for (Peer* peer : silent) {
    // on_silence() runs handlers, which may end other peers.
    if (peers_.count(peer) != 0 && !peer->ended) {
      on_silence(*peer, now - peer->link->last_received());
    }
  }
  if (!peers_.empty()) {
    arm_tick(next);
  }
}

void ServerImpl::on_silence(Peer& peer, Duration silent) {
  const Status cause(
      Code::kPeerLost,
      peer.text() + " has been silent for " + seconds_text(silent) + " (stopped, swapping, or its host is unreachable)",
      {peer.rank, ""});
  conclude(peer, cause);
}

void ServerImpl::broke_protocol(Peer& peer, const std::string& what) {
  const Status cause(Code::kCorrupt, peer.text() + " broke the protocol: " + what, {peer.rank, ""});
  handler_.on_warning(std::string(cause.text()));
  conclude(peer, cause);
}

void ServerImpl::on_end(Peer& peer, const Status& cause) {
  if (peer.state == Peer::State::kGuest) {
    return conclude(peer, cause);
  }
  const auto exit = exits_.find(peer.slot);
  if (exit != exits_.end()) {
    return conclude(peer, {Code::kPeerLost, peer.text() + " ended: " + exit->second, {peer.rank, ""}});
  }
  const Status plain(
      cause.code(),
      peer.text() + " ended without leaving: " + std::string(cause.text()) + "; its own output may say why",
      {peer.rank, ""});
  if (options_.exit_report_wait <= Duration::zero()) {
    return conclude(peer, plain);
  }
  peer.ended = true;
  peer.verdict = loop_.after(options_.exit_report_wait, [this, &peer, plain] { conclude(peer, plain); });
}

void ServerImpl::report_exit(Rank rank, const std::string& what) {
  SRT_IN_LOOP(loop_);
  if (rank < 0 || rank >= options_.size) {
    return;
  }
  exits_[rank] = what;
  Peer* peer = find(rank);
  if (peer == nullptr && options_.elastic) {
    const std::string who = "rank " + std::to_string(rank);
    return handler_.on_absent(rank,
                              {Code::kPeerLost, who + " cannot join, its process has ended: " + what, {rank, ""}});
  }
  if (peer == nullptr) {
    if (!round_.is_empty() && !in_epoch_) {
      fail_round(exited_rank());
    }
    return;
  }
  const Status cause(Code::kPeerLost, peer->text() + " ended: " + what, {peer->rank, ""});
  if (peer->ended) {
    return conclude(*peer, cause);
  }
  loop_.cancel(peer->verdict);
  peer->verdict = loop_.after(kExitDrain, [this, peer, cause] { conclude(*peer, cause); });
}

// Every connection that ends without a leave ends here.
void ServerImpl::conclude(Peer& peer, const Status& cause) {
  const Peer::State before = peer.state;
  const Rank rank = peer.rank;
  const bool announced = peer.announced;
  const PeerId id = peer.id;
  peer.link->send(FrameType::kLost, encode_lost(rank, cause));  // received if the peer is alive, or resumes in time
  forget(peer);
  if (options_.elastic) {
    return before == Peer::State::kGuest ? void() : handler_.on_gone(id, cause);
  }
  if (before == Peer::State::kMember && announced) {
    // The other members have the notice of its leave and do not wait for it, so its end is no loss.
    handler_.on_warning("after it had left: " + std::string(cause.text()));
    member_left(rank, announced);
  } else if (before == Peer::State::kMember) {
    member_lost(rank, cause);
  } else if (before == Peer::State::kWaiting) {
    fail_round(cause);
    note_notified(rank);
  }
}

// Removes the peer from all tables; frees it later on the loop, because callers on the stack may still use it.
void ServerImpl::forget(Peer& peer) {
  loop_.cancel(peer.verdict);
  peer.link->finish();
  if (options_.elastic) {
    leave_seat(peer);
    round_.remove(peer.slot);
  } else if (peer.state == Peer::State::kMember) {
    members_[static_cast<std::size_t>(peer.rank)] = nullptr;
    --alive_;
  } else if (peer.state == Peer::State::kWaiting) {
    waiting_[static_cast<std::size_t>(peer.rank)] = nullptr;
    round_.remove(peer.rank);
  }
  peer.state = Peer::State::kGone;
  auto node = peers_.extract(&peer);
  loop_.post([dead = std::move(node.mapped())] {});
  if (peers_.empty()) {
    loop_.cancel(tick_);
  }
}

}  // namespace sirtaki::rendezvous
