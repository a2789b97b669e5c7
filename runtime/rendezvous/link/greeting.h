// Greeting: the handshake of a new connection over its socket, on either side. Includes Asio: for .cc files of
// rendezvous and net.
//
// Owned by the AuthListener or Dialing that began it, and by its own Asio operations, which use memory of its own only.
// Loop thread. The result comes once, never from inside run(), and not after abandon().
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
  std::vector<std::byte> hello;  // acceptor: what the other side says of itself, and whom it wants
  std::vector<std::byte> rest;   // bytes that came after the handshake
};

class Greeting : public std::enable_shared_from_this<Greeting> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Callback = MoveFunction<void(Result<Greeted>)>;

  struct Setup {
    AsioLoop* loop = nullptr;
    bool accepts = false;           // the handshake is an acceptor's
    Duration deadline{};            // of the handshake
    std::size_t welcome_bytes = 0;  // to wait for behind it
    Duration welcome_deadline{};    // for those: the other side may know its epoch much later than this one
  };
  Greeting(const Setup& setup, Socket socket, Handshake handshake);

  // kTimeout: a deadline has passed. kPeerLost: the connection ended. Anything else is for good (refused()).
  void run(Callback callback);
  void abandon();
  // The peer proved to be none of this job, or did not accept this one: trying again is of no use.
  bool refused() const { return refused_; }
  // The handshake is done, the welcome not here.
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
};

}  // namespace sirtaki::rendezvous
