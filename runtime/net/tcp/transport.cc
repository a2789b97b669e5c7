#include "runtime/net/tcp/transport.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/tcp/transport_impl.h"

namespace sirtaki::net {
namespace {

constexpr Duration kRoundTripAge = std::chrono::seconds(1);
// Limit of callbacks that run before sockets and other tasks do.
constexpr int kCallbacksPerTurn = 1024;

}  // namespace

Transport::Impl::Impl(rendezvous::AsioLoop& loop, rendezvous::Secret secret, TransportOptions options)
    : loop_(loop), secret_(secret), options_(std::move(options)) {
  shared_.limits = options_.limits;
  shared_.completions = &completions_;
  shared_.tombstones = &tombstones_;
  shared_.clock = &loop_;
  shared_.samples = &samples_;
}

Channel* Transport::Impl::channel(Rank peer) {
  const auto& connection = connections_[static_cast<std::size_t>(peer)];
  return connection ? &connection->channel() : nullptr;
}

Status Transport::Impl::refuse(const Envelope& envelope) const {
  if (!failed_.ok()) {
    return failed_;
  }
  if (connections_.empty() || connections_[static_cast<std::size_t>(envelope.peer)] == nullptr) {
    return {Code::kShutdown, "the transport is not connected"};
  }
  const Status* const cause = tombstones_.find(envelope.tag);
  return cause != nullptr ? *cause : Status();
}

void Transport::Impl::send(const Envelope& envelope, ConstBytes data, Done done) {
  SRT_IN_LOOP(loop_);
  SRT_CHECK(envelope.peer >= 0 && envelope.peer < size_ && envelope.peer != rank_);
  schedule_turn();
  if (Status refused = refuse(envelope); !refused.ok()) {
    completions_.add(std::move(done), std::move(refused));
    return;
  }
  channel(envelope.peer)->send(envelope, data, std::move(done));
}

void Transport::Impl::recv(const Envelope& envelope, Bytes out, Done done) {
  SRT_IN_LOOP(loop_);
  SRT_CHECK(envelope.peer >= 0 && envelope.peer < size_ && envelope.peer != rank_);
  schedule_turn();
  if (Status refused = refuse(envelope); !refused.ok()) {
    completions_.add(std::move(done), std::move(refused));
    return;
  }
  channel(envelope.peer)->recv(envelope, out, std::move(done));
}

void Transport::Impl::cancel(const TagGroup& tags, const Status& cause) {
  SRT_IN_LOOP(loop_);
  schedule_turn();
  tombstones_.add(tags, cause);
  for (const auto& connection : connections_) {
    if (connection) {
      connection->channel().cancel(tags, cause);
    }
  }
}

void Transport::Impl::fail(const Status& cause) {
  SRT_IN_LOOP(loop_);
  schedule_turn();
  failed_.update(cause);
  if (connecting_.done) {
    mesh_failed(failed_);
  }
  for (const auto& connection : connections_) {
    if (connection) {
      connection->channel().fail(failed_, false);
    }
  }
}

void Transport::Impl::schedule_turn() {
  if (in_turn_ || turn_scheduled_) {
    return;
  }
  turn_scheduled_ = true;
  loop_.post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->turn_scheduled_ = false;
      self->end_turn();
    }
  });
}

void Transport::Impl::on_progress() {
  end_turn();
}

void Transport::Impl::end_turn() {
  if (in_turn_ || destroyed_) {
    return;
  }
  const auto self = shared_from_this();  // a callback may destroy the transport
  in_turn_ = true;
  // Queued frames are written before callbacks, which may compute for long and queue more.
  flush_all();
  run_callbacks();
  flush_all();
  in_turn_ = false;
  if (!completions_.empty() || !samples_.empty()) {
    schedule_turn();
  }
}

void Transport::Impl::run_callbacks() {
  std::vector<TransferSample> samples;
  samples.swap(samples_);
  for (const TransferSample& sample : samples) {
    if (on_sample_ && !destroyed_) {
      on_sample_(sample);
    }
  }
  for (int i = 0; i < kCallbacksPerTurn && !completions_.empty() && !destroyed_; ++i) {
    completions_.run_one();
  }
}

void Transport::Impl::flush_all() {
  for (std::size_t peer = 0; peer < connections_.size() && !destroyed_; ++peer) {
    const auto connection = connections_[peer];
    if (connection && connection->open() && connection->channel().wants_write()) {
      connection->flush();
    }
  }
}

void Transport::Impl::on_end(Rank peer, const Status& cause) {
  if (!cause.ok() && lost_[static_cast<std::size_t>(peer)].ok()) {
    lost_[static_cast<std::size_t>(peer)] = cause;
    completions_.add(
        [weak = weak_from_this(), peer](const Status& status) {
          const auto self = weak.lock();
          if (self && self->on_peer_lost_) {
            self->on_peer_lost_(peer, status);
          }
        },
        cause);
    if (connecting_.done) {
      mesh_failed(cause.with_context("while the ranks connect"));
    }
  }
  schedule_turn();
  close_progress();
}

std::vector<PeerStats> Transport::Impl::stats() const {
  std::vector<PeerStats> all;
  for (std::size_t peer = 0; peer < connections_.size(); ++peer) {
    if (connections_[peer]) {
      const Channel& channel = connections_[peer]->channel();
      all.push_back({static_cast<Rank>(peer), connections_[peer]->open(), channel.queued_bytes(), channel.counters()});
    }
  }
  return all;
}

Duration Transport::Impl::round_trip() {
  const TimePoint now = loop_.now();
  if (round_trip_.read_at && now - *round_trip_.read_at < kRoundTripAge) {
    return round_trip_.value;
  }
  round_trip_.read_at = now;
  round_trip_.value = Duration(0);
  for (const auto& connection : connections_) {
    if (connection && connection->open()) {
      round_trip_.value = std::max(round_trip_.value, connection->round_trip());
    }
  }
  return round_trip_.value;
}

void Transport::Impl::close(Done done) {
  SRT_IN_LOOP(loop_);
  SRT_CHECK(!closing_);
  closing_ = true;
  close_done_ = std::move(done);
  fail({Code::kShutdown, "the transport is closed"});
  gate_.reset();
  connecting_.early.take();  // they need not wait for a welcome any more
  close_timer_ = loop_.after(options_.close_timeout, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      for (const auto& connection : self->connections_) {
        if (connection) {
          connection->close();
        }
      }
      self->close_progress();
      self->end_turn();
    }
  });
  for (const auto& connection : connections_) {
    if (connection) {
      connection->leave();
    }
  }
  close_progress();
}

void Transport::Impl::close_progress() {
  if (!closing_ || !close_done_) {
    return;
  }
  for (const auto& connection : connections_) {
    if (connection && connection->open()) {
      return;
    }
  }
  loop_.cancel(close_timer_);
  completions_.add(std::move(close_done_), {});
  close_done_ = Done();
  schedule_turn();
}

void Transport::Impl::destroy() {
  destroyed_ = true;
  loop_.cancel(connecting_.timer);
  loop_.cancel(close_timer_);
  gate_.reset();
  for (const auto& dialer : connecting_.dialers) {
    if (dialer) {
      dialer->abandon();
    }
  }
  for (const auto& connection : connections_) {
    if (connection) {
      connection->close();
    }
  }
}

Transport::Transport(rendezvous::AsioLoop& loop, rendezvous::Secret secret, TransportOptions options)
    : impl_(std::make_shared<Impl>(loop, secret, std::move(options))) {}

Transport::~Transport() {
  impl_->destroy();
}

Status Transport::listen() {
  return impl_->listen();
}

std::uint16_t Transport::port() const {
  return impl_->port();
}

void Transport::connect(const rendezvous::Membership& membership, Rank rank, Done done) {
  impl_->connect(membership, rank, std::move(done));
}

void Transport::set_on_peer_lost(MoveFunction<void(Rank, Status)> callback) {
  impl_->on_peer_lost_ = std::move(callback);
}

void Transport::set_on_sample(MoveFunction<void(const TransferSample&)> callback) {
  impl_->on_sample_ = std::move(callback);
}

std::vector<PeerStats> Transport::stats() const {
  return impl_->stats();
}

const std::vector<Rank>& Transport::unreachable() const {
  return impl_->unreachable();
}

void Transport::close(Done done) {
  impl_->close(std::move(done));
}

Rank Transport::rank() const {
  return impl_->rank_;
}

int Transport::size() const {
  return impl_->size_;
}

Loop& Transport::loop() {
  return impl_->loop_;
}

bool Transport::one_host() const {
  return impl_->one_host();
}

Duration Transport::round_trip() const {
  return impl_->round_trip();
}

void Transport::send(const Envelope& envelope, ConstBytes data, Done done) {
  impl_->send(envelope, data, std::move(done));
}

void Transport::recv(const Envelope& envelope, Bytes out, Done done) {
  impl_->recv(envelope, out, std::move(done));
}

void Transport::cancel(TagGroup tags, Status cause) {
  impl_->cancel(tags, cause);
}

void Transport::forget(const TagGroup& tags) {
  impl_->forget(tags);
}

void Transport::fail(Status cause) {
  impl_->fail(cause);
}

}  // namespace sirtaki::net
