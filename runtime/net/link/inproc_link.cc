#include "runtime/net/link/inproc_link.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/link/mismatch.h"

namespace sirtaki::net {

enum class PacketKind { kMessage, kMismatch, kLost };

struct InprocGroup::Packet {
  PacketKind kind = PacketKind::kMessage;
  Envelope envelope;  // peer: the sender
  std::vector<std::byte> data;
  Status status;
};

struct InprocGroup::Port {
  std::mutex mutex;  // guards all below: a port is reached from every rank's thread
  Loop* loop = nullptr;
  InprocEndpoint* endpoint = nullptr;
  std::deque<Packet> early;  // for an endpoint that does not exist yet
  bool dead = false;
};

struct InprocGroup::Link {
  std::deque<Packet> on_the_way;
};

InprocGroup::InprocGroup(int size, LocalOptions options) : options_(std::move(options)) {
  for (int i = 0; i < size; ++i) {
    ports_.push_back(std::make_unique<Port>());
  }
  for (int i = 0; i < size * size; ++i) {
    links_.push_back(std::make_unique<Link>());
  }
}

InprocGroup::~InprocGroup() = default;

std::shared_ptr<InprocGroup> InprocGroup::create(int size, LocalOptions options) {
  SRT_CHECK(size >= 1);
  return std::shared_ptr<InprocGroup>(new InprocGroup(size, std::move(options)));
}

int InprocGroup::size() const {
  return static_cast<int>(ports_.size());
}

std::unique_ptr<InprocEndpoint> InprocGroup::endpoint(Rank rank, Loop& loop) {
  SRT_IN_LOOP(loop);
  SRT_CHECK(rank >= 0 && rank < size());
  std::unique_ptr<InprocEndpoint> made(new InprocEndpoint(shared_from_this(), rank, loop));
  Port& port = *ports_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(port.mutex);
  SRT_CHECK(port.endpoint == nullptr);
  port.loop = &loop;
  port.endpoint = made.get();
  for (Packet& packet : port.early) {
    loop.post([self = shared_from_this(), rank, moved = std::move(packet)]() mutable {
      self->arrive(rank, std::move(moved));
    });
  }
  port.early.clear();
  return made;
}

void InprocGroup::detach(Rank rank) {
  Port& port = *ports_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(port.mutex);
  port.loop = nullptr;
  port.endpoint = nullptr;
}

void InprocGroup::dispatch(Rank from, Rank to, Packet packet, Loop& sender) {
  const Duration delay = options_.delay ? options_.delay(from, to, packet.data.size()) : Duration::zero();
  const int index = from * size() + to;
  Link& link = *links_[static_cast<std::size_t>(index)];
  if (delay <= Duration::zero() && link.on_the_way.empty()) {
    hand_over(to, std::move(packet));
    return;
  }
  // Timers may fire in any order; each one delivers the oldest message, so the link stays first in, first out.
  link.on_the_way.push_back(std::move(packet));
  sender.after(delay, [self = shared_from_this(), &link, to] {
    Packet oldest = std::move(link.on_the_way.front());
    link.on_the_way.pop_front();
    self->hand_over(to, std::move(oldest));
  });
}

void InprocGroup::hand_over(Rank to, Packet packet) {
  Port& port = *ports_[static_cast<std::size_t>(to)];
  const std::lock_guard lock(port.mutex);
  if (port.loop == nullptr) {
    port.early.push_back(std::move(packet));
    return;
  }
  port.loop->post(
      [self = shared_from_this(), to, moved = std::move(packet)]() mutable { self->arrive(to, std::move(moved)); });
}

void InprocGroup::arrive(Rank to, Packet packet) {
  InprocEndpoint* endpoint = nullptr;
  {
    Port& port = *ports_[static_cast<std::size_t>(to)];
    const std::lock_guard lock(port.mutex);
    endpoint = port.endpoint;  // changes on this thread only
  }
  if (endpoint == nullptr) {
    return;
  }
  switch (packet.kind) {
    case PacketKind::kMessage:
      endpoint->on_message(packet.envelope, std::move(packet.data));
      break;
    case PacketKind::kMismatch:
      endpoint->on_mismatch(packet.envelope.peer, packet.envelope.tag, packet.status);
      break;
    case PacketKind::kLost:
      endpoint->on_lost(packet.envelope.peer, packet.status);
      break;
  }
}

void InprocGroup::kill(Rank rank, const Status& cause) {
  {
    Port& port = *ports_[static_cast<std::size_t>(rank)];
    const std::lock_guard lock(port.mutex);
    if (port.dead) {
      return;
    }
    port.dead = true;
  }
  const Status lost(Code::kPeerLost, "rank " + std::to_string(rank) + " died: " + std::string(cause.text()),
                    {rank, {}});
  for (Rank to = 0; to < size(); ++to) {
    Packet packet;
    packet.kind = PacketKind::kLost;
    packet.envelope.peer = rank;
    packet.status = to == rank ? cause : lost;
    hand_over(to, std::move(packet));
  }
}

InprocEndpoint::InprocEndpoint(std::shared_ptr<InprocGroup> group, Rank rank, Loop& loop)
    : group_(std::move(group)), rank_(rank), loop_(loop), peers_(static_cast<std::size_t>(group_->size())) {}

InprocEndpoint::~InprocEndpoint() {
  loop_.cancel(fragment_);
  group_->detach(rank_);
}

void InprocEndpoint::complete(Done done, Status status) {
  loop_.post([moved = std::move(done), status = std::move(status)]() mutable { moved(status); });
}

Status InprocEndpoint::refuse(const Envelope& envelope) const {
  SRT_CHECK(envelope.peer >= 0 && envelope.peer < group_->size());
  if (!failed_.ok()) {
    return failed_;
  }
  if (const Status* cause = tombstones_.find(envelope.tag)) {
    return *cause;
  }
  return {};
}

void InprocEndpoint::send(const Envelope& envelope, ConstBytes data, Done done) {
  SRT_IN_LOOP(loop_);
  Status refused = refuse(envelope);
  refused.update(peers_[static_cast<std::size_t>(envelope.peer)].lost);
  if (!refused.ok()) {
    complete(std::move(done), std::move(refused));
    return;
  }
  const auto fate = group_->options_.fate ? group_->options_.fate(rank_, envelope, data.size()) : MessageFate::kDeliver;
  if (fate == MessageFate::kKillSender) {
    group_->kill(rank_, {Code::kAborted, "killed by fault injection"});
  }
  if (fate == MessageFate::kDeliver && group_->options_.bytes_per_second > 0) {
    queue(envelope, data, std::move(done));
    return;
  }
  if (fate == MessageFate::kDeliver) {
    put_on_the_way(envelope, data);
  }
  complete(std::move(done), {});
}

void InprocEndpoint::put_on_the_way(const Envelope& envelope, ConstBytes data) {
  InprocGroup::Packet packet;
  packet.envelope = envelope;
  packet.envelope.peer = rank_;
  packet.data.assign(data.begin(), data.end());
  group_->dispatch(rank_, envelope.peer, std::move(packet), loop_);
}

void InprocEndpoint::queue(const Envelope& envelope, ConstBytes data, Done done) {
  leaving_[envelope.priority].push_back({envelope, data, data.size(), std::move(done)});
  if (fragment_ == TimerId()) {
    send_fragment();
  }
}

void InprocEndpoint::send_fragment() {
  const auto first = leaving_.begin();
  const std::size_t bytes = std::min(first->second.front().left, group_->options_.fragment_bytes);
  const Duration time(static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / group_->options_.bytes_per_second));
  fragment_ = loop_.after(time, [this, priority = first->first, bytes] { on_fragment_sent(priority, bytes); });
}

// The message may have been dropped meanwhile. Then the bytes count for the next one of its priority.
void InprocEndpoint::on_fragment_sent(std::int32_t priority, std::size_t bytes) {
  fragment_ = TimerId();
  if (const auto found = leaving_.find(priority); found != leaving_.end()) {
    Leaving& message = found->second.front();
    message.left -= std::min(message.left, bytes);
    if (message.left == 0) {
      put_on_the_way(message.envelope, message.data);
      complete(std::move(message.done), {});
      found->second.pop_front();
      if (found->second.empty()) {
        leaving_.erase(found);
      }
    }
  }
  if (!leaving_.empty()) {
    send_fragment();
  }
}

template <class Selects>
void InprocEndpoint::drop_queued(Selects selects, const Status& cause) {
  for (auto queue = leaving_.begin(); queue != leaving_.end();) {
    std::erase_if(queue->second, [&](Leaving& message) {
      if (!selects(message.envelope)) {
        return false;
      }
      complete(std::move(message.done), cause);
      return true;
    });
    queue = queue->second.empty() ? leaving_.erase(queue) : std::next(queue);
  }
}

void InprocEndpoint::recv(const Envelope& envelope, Bytes out, Done done) {
  SRT_IN_LOOP(loop_);
  Status refused = refuse(envelope);
  if (!refused.ok()) {
    complete(std::move(done), std::move(refused));
    return;
  }
  Peer& peer = peers_[static_cast<std::size_t>(envelope.peer)];
  Posted posted{envelope.check, out, std::move(done)};
  if (auto arrived = peer.arrived.take(envelope.tag, envelope.slot)) {
    match(envelope, std::move(posted), std::move(*arrived));
  } else if (!peer.lost.ok()) {
    complete(std::move(posted.done), peer.lost);
  } else {
    peer.posted.push(envelope.tag, envelope.slot, std::move(posted));
  }
}

void InprocEndpoint::match(const Envelope& envelope, Posted posted, Arrived arrived) {
  const Expectation here{posted.out.size(), posted.check};
  const Expectation there{arrived.data.size(), arrived.check};
  if (here == there) {
    if (!arrived.data.empty()) {
      std::memcpy(posted.out.data(), arrived.data.data(), arrived.data.size());
    }
    complete(std::move(posted.done), {});
    return;
  }
  complete(std::move(posted.done), mismatch_error(envelope.peer, here, there));
  InprocGroup::Packet packet;
  packet.kind = PacketKind::kMismatch;
  packet.envelope = envelope;
  packet.envelope.peer = rank_;
  packet.status = mismatch_error(rank_, there, here);
  group_->dispatch(rank_, envelope.peer, std::move(packet), loop_);
}

void InprocEndpoint::on_message(const Envelope& envelope, std::vector<std::byte> data) {
  Peer& peer = peers_[static_cast<std::size_t>(envelope.peer)];
  if (!failed_.ok() || !peer.lost.ok() || tombstones_.find(envelope.tag) != nullptr) {
    return;
  }
  Arrived arrived{envelope.check, std::move(data)};
  if (auto posted = peer.posted.take(envelope.tag, envelope.slot)) {
    match(envelope, std::move(*posted), std::move(arrived));
  } else {
    peer.arrived.push(envelope.tag, envelope.slot, std::move(arrived));
  }
}

void InprocEndpoint::on_mismatch(Rank peer, OpTag tag, const Status& cause) {
  for (Posted& posted : peers_[static_cast<std::size_t>(peer)].posted.take_tags(tag)) {
    complete(std::move(posted.done), cause);
  }
}

void InprocEndpoint::on_lost(Rank lost, const Status& cause) {
  if (lost == rank_) {
    fail(cause);
    return;
  }
  Peer& peer = peers_[static_cast<std::size_t>(lost)];
  peer.lost.update(cause);
  drop_queued([lost](const Envelope& envelope) { return envelope.peer == lost; }, peer.lost);
  for (Posted& posted : peer.posted.take_all()) {
    complete(std::move(posted.done), peer.lost);
  }
  if (on_peer_lost_) {
    on_peer_lost_(lost, peer.lost);
  }
}

void InprocEndpoint::cancel(TagGroup tags, Status cause) {
  SRT_IN_LOOP(loop_);
  tombstones_.add(tags, cause);
  drop_queued([&tags](const Envelope& envelope) { return tags.contains(envelope.tag); }, cause);
  for (Peer& peer : peers_) {
    peer.arrived.take_tags(tags);
    for (Posted& posted : peer.posted.take_tags(tags)) {
      complete(std::move(posted.done), cause);
    }
  }
}

void InprocEndpoint::fail(Status cause) {
  SRT_IN_LOOP(loop_);
  failed_.update(cause);
  drop_queued([](const Envelope&) { return true; }, failed_);
  for (Peer& peer : peers_) {
    peer.arrived.take_all();
    for (Posted& posted : peer.posted.take_all()) {
      complete(std::move(posted.done), failed_);
    }
  }
}

}  // namespace sirtaki::net
