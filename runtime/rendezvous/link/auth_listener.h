// AuthListener: the listening socket of a job. Accepts connections that prove the secret of the job in time, and drops
// all others.
//
// Strangers (connections without the secret) cost a bounded amount: at most `max_visitors` of them, each with a small
// fixed buffer and one deadline; a further one replaces the oldest. A stranger gets no informative answer.
// Owned by: Server, BranchPort, JoinPort of the launcher. Threads: everything except open() and strangers() runs on the
// loop thread, the destructor too.
#pragma once

#include <netdb.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "runtime/rendezvous/auth/handshake.h"
#include "runtime/rendezvous/auth/secret.h"
#include "runtime/rendezvous/link/asio_loop.h"

namespace sirtaki::rendezvous {

struct GateOptions {
  std::string bind_address;      // an IP address or localhost; empty or "::": all, with or without IPv6
  std::uint16_t port_first = 0;  // 0: any free port; else the first free one in [port_first, port_last]
  std::uint16_t port_last = 0;
  Secret secret;
  Purpose purpose = Purpose::kControl;
  Duration handshake_timeout = std::chrono::seconds(5);
  int max_visitors = 64;
};

// A connection that has proved the secret.
struct Guest {
  boost::asio::ip::tcp::socket socket;
  std::string address;               // "10.0.0.3:4000", for messages
  std::vector<std::byte> hello;      // identity given in the handshake
  std::vector<std::byte> following;  // bytes received after the handshake
  Secret session;                    // key of this connection, see Handshake::session_key()
};

class GateHandler {
 public:
  virtual ~GateHandler() = default;
  virtual void on_guest(Guest guest) = 0;
  // Gives a line for the log about refused connections: the first at once, then at most one every ten seconds.
  virtual void on_gate_warning(const std::string& line) = 0;
};

class AuthListener {
 public:
  // Listens. Connections are accepted from the next turn of the loop on. `handler` outlives the listener. Any thread.
  static Result<std::unique_ptr<AuthListener>> open(AsioLoop& loop, GateOptions options, GateHandler& handler);
  ~AuthListener();

  std::uint16_t port() const { return port_; }
  std::uint64_t strangers() const { return strangers_.load(std::memory_order_relaxed); }  // any thread

 private:
  class Visitor;
  using Visitors = std::list<std::shared_ptr<Visitor>>;

  AuthListener(AsioLoop& loop, GateOptions options, GateHandler& handler);
  Status listen();
  Status listen_at(const std::string& where, bool& in_use);
  Status try_port(const addrinfo& address, std::uint16_t port, int& error);
  void start();
  void wait_for_visitors();
  void accept_all();
  void admit(int fd);
  void forget(Visitor& visitor);
  void refuse(Visitor& visitor, const std::string& reason);
  void count_stranger(const std::string& address, const std::string& reason);

  AsioLoop& loop_;
  const GateOptions options_;
  GateHandler& handler_;
  std::uint16_t port_ = 0;
  boost::asio::ip::tcp::acceptor acceptor_;
  TimerId accept_pause_;
  Visitors visitors_;  // oldest first
  std::atomic<std::uint64_t> strangers_{0};
  std::uint64_t reported_ = 0;
  TimePoint last_report_;
  std::shared_ptr<AuthListener*> self_;  // set to null by the destructor; read by handlers in flight
};

}  // namespace sirtaki::rendezvous
