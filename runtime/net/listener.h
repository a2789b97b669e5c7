// Listener: the data port. Accepts connections and lets those through that prove the job's secret.
// Includes Asio: for .cc files of this folder.
//
// Owned by a Transport; its loop's thread. Strangers cost a bounded number of sockets for a bounded time: when too many
// have not proved themselves the oldest is dropped (a rank of the job tries again).
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "runtime/net/greeting.h"

namespace sirtaki::net {

class Listener : public std::enable_shared_from_this<Listener> {
 public:
  struct Setup {
    rendezvous::AsioLoop* loop = nullptr;
    rendezvous::Secret secret;
    std::string bind_address;  // empty: all, IPv4 and IPv6
    std::uint16_t port_first = 0;
    std::uint16_t port_last = 0;  // both 0: any free port
    Duration handshake_timeout{};
    std::size_t max_strangers = 0;
  };
  using OnPeer = MoveFunction<void(Greeted)>;

  explicit Listener(Setup setup);
  Status open();
  std::uint16_t port() const { return port_; }
  void start(OnPeer on_peer);
  void close();

 private:
  Status open_at(const boost::asio::ip::tcp::endpoint& endpoint);
  Result<std::uint16_t> bind_in_range(const boost::asio::ip::address& address);
  void accept();
  void on_accept(boost::asio::ip::tcp::socket socket);
  void on_greeted(const Greeting* greeting, Result<Greeted> result);

  const Setup setup_;
  boost::asio::ip::tcp::acceptor acceptor_;
  std::uint16_t port_ = 0;
  OnPeer on_peer_;
  std::deque<std::shared_ptr<Greeting>> strangers_;  // oldest first
};

}  // namespace sirtaki::net
