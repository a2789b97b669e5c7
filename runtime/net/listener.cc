#include "runtime/net/listener.h"

#include <algorithm>
#include <boost/asio/ip/v6_only.hpp>
#include <utility>

#include "runtime/rendezvous/asio_context.h"

namespace sirtaki::net {

using boost::asio::ip::tcp;

namespace {

// How long a full table of file descriptors is left alone.
constexpr Duration kAcceptPause = std::chrono::milliseconds(50);

}  // namespace

Listener::Listener(Setup setup) : setup_(std::move(setup)), acceptor_(rendezvous::io_context_of(*setup_.loop)) {}

Status Listener::open() {
  namespace ip = boost::asio::ip;
  if (!setup_.bind_address.empty()) {
    boost::system::error_code error;
    const ip::address address = ip::make_address(setup_.bind_address, error);
    if (error) {
      return invalid_argument("'" + setup_.bind_address + "' is not an IP address to listen on");
    }
    SRT_ASSIGN(port_, bind_in_range(address));
    return {};
  }
  Result<std::uint16_t> port = bind_in_range(ip::address_v6::any());
  if (!port) {
    // A host without IPv6.
    port = bind_in_range(ip::address_v4::any());
  }
  SRT_ASSIGN(port_, std::move(port));
  return {};
}

Result<std::uint16_t> Listener::bind_in_range(const boost::asio::ip::address& address) {
  Status failure;
  for (int port = setup_.port_first; port <= setup_.port_last; ++port) {
    failure = open_at({address, static_cast<std::uint16_t>(port)});
    if (failure) {
      return acceptor_.local_endpoint().port();
    }
  }
  const std::string range = setup_.port_first == setup_.port_last ? "port " + std::to_string(setup_.port_first)
                                                                  : "any port of " + std::to_string(setup_.port_first) +
                                                                        " to " + std::to_string(setup_.port_last);
  return unavailable("cannot listen for data connections on " + address.to_string() + ", " + range + ": " +
                     std::string(failure.text()) + "; give a wider range of ports or another address");
}

Status Listener::open_at(const tcp::endpoint& endpoint) {
  boost::system::error_code error;
  acceptor_.close(error);
  acceptor_.open(endpoint.protocol(), error);
  if (!error && endpoint.address().is_v6() && endpoint.address().is_unspecified()) {
    acceptor_.set_option(boost::asio::ip::v6_only(false), error);
  }
  if (!error) {
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  }
  if (!error) {
    acceptor_.bind(endpoint, error);
  }
  if (!error) {
    acceptor_.listen(boost::asio::socket_base::max_listen_connections, error);
  }
  return error ? unavailable(error.message()) : Status();
}

void Listener::start(OnPeer on_peer) {
  on_peer_ = std::move(on_peer);
  accept();
}

void Listener::accept() {
  acceptor_.async_accept([weak = weak_from_this()](const boost::system::error_code& error, tcp::socket socket) {
    const auto self = weak.lock();
    if (!self || !self->acceptor_.is_open()) {
      return;
    }
    if (!error) {
      self->on_accept(std::move(socket));
      self->accept();
      return;
    }
    self->setup_.loop->after(kAcceptPause, [weak] {
      const auto again = weak.lock();
      if (again && again->acceptor_.is_open()) {
        again->accept();
      }
    });
  });
}

void Listener::on_accept(tcp::socket socket) {
  if (strangers_.size() >= setup_.max_strangers) {
    strangers_.front()->abandon();
    strangers_.pop_front();
  }
  Greeting::Setup greeting_setup;
  greeting_setup.loop = setup_.loop;
  greeting_setup.deadline = setup_.handshake_timeout;
  auto greeting = std::make_shared<Greeting>(
      greeting_setup, std::move(socket), rendezvous::Handshake::acceptor(setup_.secret, rendezvous::Purpose::kData));
  strangers_.push_back(greeting);
  greeting->run([weak = weak_from_this(), raw = greeting.get()](Result<Greeted> result) {
    if (const auto self = weak.lock()) {
      self->on_greeted(raw, std::move(result));
    }
  });
}

void Listener::on_greeted(const Greeting* greeting, Result<Greeted> result) {
  std::erase_if(strangers_, [greeting](const auto& known) { return known.get() == greeting; });
  if (result && on_peer_) {
    on_peer_(std::move(*result));
  }
}

void Listener::close() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  for (const auto& greeting : strangers_) {
    greeting->abandon();
  }
  strangers_.clear();
  on_peer_ = OnPeer();
}

}  // namespace sirtaki::net
