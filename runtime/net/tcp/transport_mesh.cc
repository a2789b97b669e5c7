#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/wire.h"
#include "runtime/net/tcp/transport_impl.h"

namespace sirtaki::net {
namespace {

std::string seconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count() / 1000) + " s";
}

}  // namespace

Status Transport::Impl::listen() {
  SRT_IN_LOOP(loop_);
  if (!secret_.is_set()) {
    return invalid_argument("the data port needs the job's secret");
  }
  rendezvous::GateOptions gate;
  gate.bind_address = options_.bind_address;
  gate.port_first = options_.port_first;
  gate.port_last = options_.port_last;
  gate.secret = secret_;
  gate.purpose = rendezvous::Purpose::kData;
  gate.handshake_timeout = options_.handshake_timeout;
  gate.max_visitors = options_.max_strangers + options_.ranks;
  auto opened = rendezvous::AuthListener::open(loop_, std::move(gate), *this);
  SRT_TRY(opened.status().with_context("for data connections"));
  gate_ = std::move(*opened);
  return {};
}

void Transport::Impl::connect(const rendezvous::Membership& membership, Rank rank, Done done) {
  SRT_IN_LOOP(loop_);
  SRT_CHECK(gate_ != nullptr && !membership_ && rank >= 0 && rank < membership.size());
  membership_ = membership;
  rank_ = rank;
  size_ = membership.size();
  shared_.rank = rank;
  shared_.epoch = membership.epoch;
  one_host_ = membership.host_count() == 1;
  const auto count = static_cast<std::size_t>(size_);
  connections_.resize(count);
  connecting_.dialers.resize(count);
  lost_.resize(count);
  connecting_.done = std::move(done);
  if (!failed_.ok()) {
    mesh_failed(failed_);
    return;
  }
  connecting_.timer = loop_.after(options_.connect_timeout, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->on_connect_deadline();
    }
  });
  for (Rank peer = 0; peer < rank_; ++peer) {
    dial(peer);
  }
  for (Arrival& arrival : connecting_.early.take()) {
    admit(std::move(arrival));
  }
  mesh_progress();
}

std::string Transport::Impl::describe(Rank peer) const {
  return "rank " + std::to_string(peer) + " (host " + membership_->members[static_cast<std::size_t>(peer)].hostname +
         ")";
}

void Transport::Impl::dial(Rank peer) {
  WireWriter hello;
  hello.put(membership_->epoch.value);
  hello.put(static_cast<std::uint32_t>(rank_));
  hello.put(static_cast<std::uint32_t>(peer));
  hello.put(static_cast<std::uint64_t>(options_.limits.eager_bytes));
  hello.put(static_cast<std::uint64_t>(options_.limits.window_bytes));
  hello.put(static_cast<std::uint64_t>(options_.limits.fragment_bytes));
  rendezvous::Dialing::Setup setup;
  setup.loop = &loop_;
  setup.secret = secret_;
  setup.addresses = membership_->members[static_cast<std::size_t>(peer)].data_endpoints;
  setup.hello = std::move(hello).take();
  setup.welcome_bytes = kFrameBytes;
  setup.check_welcome = [this, peer](ConstBytes bytes) { return check_welcome(peer, bytes); };
  setup.timeout = options_.connect_timeout;
  setup.handshake_timeout = options_.handshake_timeout;
  auto& dialer = connecting_.dialers[static_cast<std::size_t>(peer)];
  dialer = std::make_shared<rendezvous::Dialing>(std::move(setup));
  dialer->run([weak = weak_from_this(), peer](Result<rendezvous::Greeted> result) {
    if (const auto self = weak.lock()) {
      self->on_dialed(peer, std::move(result));
    }
  });
}

void Transport::Impl::on_dialed(Rank peer, Result<rendezvous::Greeted> result) {
  const auto dialer = std::move(connecting_.dialers[static_cast<std::size_t>(peer)]);
  if (!connecting_.done) {
    return;
  }
  if (!result) {
    mesh_failed({Code::kUnavailable,
                 describe(peer) + " cannot be reached for data at " + dialer->last_address() + ": " +
                     std::string(result.status().text()) +
                     "; check that a route and no firewall is between the hosts, or name another network "
                     "(net.interface, net.address) or port range",
                 {peer, {}}});
    return;
  }
  std::vector<std::byte>& rest = result->rest;
  const auto welcome = decode_frame(ConstBytes(rest).first<kFrameBytes>(), membership_->epoch);
  if (const Status status = check_limits(peer, limits_of_welcome(*welcome)); !status.ok()) {
    mesh_failed(status);
    return;
  }
  rest.erase(rest.begin(), rest.begin() + kFrameBytes);
  attach(peer, std::move(*result), welcome->flags);
}

// Two hosts may have the same address, for example that of a bridge, and their ranks the same port.
Status Transport::Impl::check_welcome(Rank peer, ConstBytes bytes) const {
  const auto welcome = decode_frame(bytes.first<kFrameBytes>(), membership_->epoch);
  if (!welcome || welcome->type != FrameType::kWelcome) {
    return corrupt("what answers there is no rank of this epoch");
  }
  if (acceptor_of_welcome(*welcome) != peer) {
    return {Code::kUnavailable, "rank " + std::to_string(acceptor_of_welcome(*welcome)) +
                                    " answers there: the address means another host here"};
  }
  return {};
}

void Transport::Impl::on_guest(rendezvous::Guest guest) {
  rendezvous::Greeted greeted{std::move(guest.socket), std::move(guest.hello), std::move(guest.following),
                              guest.session};
  WireReader reader(greeted.hello);
  Hello hello;
  hello.epoch = Epoch(reader.get<std::uint32_t>());
  hello.rank = static_cast<Rank>(reader.get<std::uint32_t>());
  hello.wanted = static_cast<Rank>(reader.get<std::uint32_t>());
  hello.limits.eager_bytes = static_cast<std::size_t>(reader.get<std::uint64_t>());
  hello.limits.window_bytes = static_cast<std::size_t>(reader.get<std::uint64_t>());
  hello.limits.fragment_bytes = static_cast<std::size_t>(reader.get<std::uint64_t>());
  if (!reader.finish("the hello of a data connection").ok()) {
    return;
  }
  Arrival arrival{std::move(greeted), hello};
  if (membership_) {
    admit(std::move(arrival));
  } else {
    connecting_.early.keep(std::move(arrival), static_cast<std::size_t>(options_.ranks));
  }
}

void Transport::Impl::admit(Arrival arrival) {
  const Hello& hello = arrival.hello;
  if (hello.wanted != rank_ && hello.epoch == membership_->epoch) {
    // The welcome identifies this rank; then the socket closes.
    const FrameBytes welcome = encode_frame(welcome_frame(membership_->epoch, rank_, options_.limits));
    boost::system::error_code ignored;
    arrival.greeted.socket.write_some(boost::asio::buffer(welcome), ignored);
    return;
  }
  if (hello.epoch != membership_->epoch || hello.rank <= rank_ || hello.rank >= size_ ||
      connections_[static_cast<std::size_t>(hello.rank)] != nullptr || closing_) {
    return;  // another epoch, or a rank that is not expected: the socket closes
  }
  if (const Status status = check_limits(hello.rank, hello.limits); !status.ok()) {
    mesh_failed(status);
  }
  // It is attached even after a failure, so that the welcome carries the reason to the other side.
  attach(hello.rank, std::move(arrival.greeted), std::nullopt);
}

Status Transport::Impl::check_limits(Rank peer, const ChannelLimits& theirs) const {
  if (theirs == options_.limits) {
    return {};
  }
  const auto text = [](const ChannelLimits& limits) {
    return std::to_string(limits.eager_bytes) + "/" + std::to_string(limits.window_bytes) + "/" +
           std::to_string(limits.fragment_bytes);
  };
  return {Code::kMismatch,
          "the sizes of eager messages, window and fragments must be the same on all ranks: " + text(theirs) + " on " +
              describe(peer) + ", " + text(options_.limits) + " here",
          {peer, {}}};
}

// `push`: the push exponent of the acceptor; nullopt: this side is the acceptor.
void Transport::Impl::attach(Rank peer, rendezvous::Greeted greeted, std::optional<std::uint8_t> push) {
  boost::system::error_code ignored;
  const auto here = greeted.socket.local_endpoint(ignored).address();
  const bool same_host = here == greeted.socket.remote_endpoint(ignored).address();
  const std::size_t fragment = same_host ? options_.limits.fragment_bytes : options_.fragment_bytes;
  const std::size_t unsent = same_host ? options_.unsent_bytes_same_host : options_.unsent_bytes;
  Connection::Socket socket{std::move(greeted.socket), options_.dead_time, fragment, unsent};
  auto connection = std::make_shared<Connection>(std::move(socket), shared_, peer, describe(peer), *this);
  connections_[static_cast<std::size_t>(peer)] = connection;
  if (!failed_.ok()) {
    connection->channel().fail(failed_, false);
  }
  connection->channel().set_push_exponent(push.value_or(push_exponent(connection->round_trip(), options_.limits)));
  connection->start(greeted.rest, !push.has_value());
  schedule_turn();
  mesh_progress();
}

void Transport::Impl::mesh_progress() {
  if (!connecting_.done) {
    return;
  }
  for (Rank peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && connections_[static_cast<std::size_t>(peer)] == nullptr) {
      return;
    }
  }
  loop_.cancel(connecting_.timer);
  completions_.add(std::move(connecting_.done), {});
  connecting_.done = Done();
  schedule_turn();
}

void Transport::Impl::mesh_failed(const Status& cause) {
  if (!connecting_.done) {
    return;
  }
  loop_.cancel(connecting_.timer);
  for (const auto& dialer : connecting_.dialers) {
    if (dialer) {
      dialer->abandon();
    }
  }
  completions_.add(std::move(connecting_.done), cause);
  connecting_.done = Done();
  failed_.update(cause);
  for (const auto& connection : connections_) {
    if (connection) {
      connection->channel().fail(failed_, false);
    }
  }
  schedule_turn();
}

void Transport::Impl::on_connect_deadline() {
  std::string text;
  for (Rank peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || connections_[static_cast<std::size_t>(peer)] != nullptr) {
      continue;
    }
    connecting_.missing.push_back(peer);
    const auto& dialer = connecting_.dialers[static_cast<std::size_t>(peer)];
    text += (text.empty() ? "" : "; ") + describe(peer) +
            (dialer ? " cannot be reached at " + dialer->last_address() + ": " + dialer->last_error()
                    : " has not connected to this rank");
  }
  mesh_failed({Code::kTimeout,
               "no data connection within " + seconds(options_.connect_timeout) + ": " + text +
                   "; check that the ranks live and that a route and no firewall is between the hosts, or name "
                   "another network (net.interface, net.address) or port range",
               {connecting_.missing.front(), {}}});
  end_turn();
}

}  // namespace sirtaki::net
