// Connection: one authenticated socket and the Channel that speaks over it. Includes Asio: for .cc files of this
// folder.
//
// Owned by a Transport; its loop's thread. Reads and writes without blocking when the socket is ready, so no operation
// of the kernel or of Asio ever holds memory of a user.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>

#include "runtime/net/tcp/channel.h"

namespace sirtaki::net {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    // Input or room has been worked on: callbacks may be due.
    virtual void on_progress() = 0;
    // Nothing can be sent or received any more. ok: both sides had said that they leave.
    virtual void on_end(Rank peer, const Status& cause) = 0;
  };

  struct Socket {
    boost::asio::ip::tcp::socket socket;
    Duration dead_time;              // unacknowledged bytes for so long: the peer is gone
    std::size_t fragment_bytes = 0;  // at most
    std::size_t unsent_bytes = 0;    // kept in the kernel before it sends them: what an urgent message cannot overtake
  };

  // `name` says who the peer is, for errors. The host outlives it.
  Connection(Socket socket, const Channel::Shared& shared, Rank peer, std::string name, Host& host);

  // `early` came together with the handshake. `accepted`: this side speaks first.
  void start(ConstBytes early, bool accepted);
  Channel& channel() { return channel_; }
  // Writes what is queued as far as the socket takes it.
  void flush();
  // After Channel::fail(): says good-bye and ends when the peer has, too.
  void leave();
  // Ends at once, without a call of the host.
  void close();
  bool open() const { return open_; }
  // The shortest one the kernel has seen; zero where it does not tell.
  Duration round_trip();

 private:
  void wait_readable();
  void wait_writable();
  void on_readable();
  void read_some(std::size_t budget);
  bool write_once();
  void on_write_error(int error);
  void after_write();
  void end(const Status& cause);
  Status lost(const std::string& how) const;

  boost::asio::ip::tcp::socket socket_;
  Channel channel_;
  const std::string name_;
  Host& host_;
  bool open_ = true;
  bool leaving_ = false;
  bool said_all_ = false;  // the sending direction is shut down
  bool write_broken_ = false;
  bool waits_writable_ = false;
};

}  // namespace sirtaki::net
