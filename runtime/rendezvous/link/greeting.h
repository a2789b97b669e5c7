// Greeting: the handshake of a new connection over its socket, for both sides. Includes Asio: for .cc files of
// rendezvous and net.
//
// Owned by: the AuthListener or Dialing that began it, and its Asio operations, which use memory of the Greeting only.
// Loop thread. Calls back once, never inside run(), and not after abandon().
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <vector>

#include "runtime/rendezvous/auth/handshake.h"
#include "runtime/rendezvous/link/asio_loop.h"

namespace sirtaki::rendezvous {

struct Greeted {
  boost::asio::ip::tcp::socket socket;
  std::vector<std::byte> hello;  // acceptor: identity of the peer, and the process it wants
  std::vector<std::byte> rest;   // bytes received after the handshake
  Secret session;                // key of this connection, see Handshake::session_key()
};

class Greeting : public std::enable_shared_from_this<Greeting> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Callback = MoveFunction<void(Result<Greeted>)>;

  struct Setup {
    AsioLoop* loop = nullptr;
    bool accepts = false;           // true: this side accepts the connection
    Duration deadline{};            // time for the handshake
    std::size_t welcome_bytes = 0;  // size of the welcome that follows the handshake
    Duration welcome_deadline{};    // time for the welcome: the peer may know its epoch much later
  };
  Greeting(const Setup& setup, Socket socket, Handshake handshake);

  // Starts the handshake. kTimeout: a deadline has passed. kPeerLost: the connection ended. Other errors are permanent,
  // see refused().
  void run(Callback callback);
  void abandon();
  // Returns true if the peer is not of this job, or refused this side: trying again is of no use.
  bool refused() const { return refused_; }
  // Returns true if the peer has sent nothing.
  bool silent() const { return silent_; }
  // Returns true if the handshake is done; the welcome may be missing.
  bool proven() const { return handshake_.done(); }

 private:
  void advance();
  void arm(Duration deadline);
  void read();
  void on_read(std::size_t count);
  void finish(Status status);

  const Setup setup_;
  Socket socket_;
  Handshake handshake_;
  Callback callback_;
  TimerId timer_;
  std::vector<std::byte> output_;
  std::array<std::byte, Handshake::kMaxBytes> input_{};
  std::vector<std::byte> rest_;
  bool refused_ = false;
  bool silent_ = true;
};

}  // namespace sirtaki::rendezvous
