// Connection: one authenticated socket and its Channel. Includes Asio, so only .cc files of this folder include it.
//
// Owned by a Transport; used on its loop. Reads and writes without blocking once the socket is ready, so neither the
// kernel nor Asio ever holds memory of a user.
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
    // Called after input or output was processed: callbacks may be due.
    virtual void on_progress() = 0;
    // Called when nothing can be sent or received any more. ok: both sides had sent kBye.
    virtual void on_end(Rank peer, const Status& cause) = 0;
  };

  struct Socket {
    boost::asio::ip::tcp::socket socket;
    Duration dead_time;              // the peer is lost after unacknowledged bytes for so long
    std::size_t fragment_bytes = 0;  // at most
    std::size_t unsent_bytes = 0;    // limit of bytes in the kernel's queue, which no urgent message can overtake
  };

  // `name` identifies the peer in errors. The host must outlive the connection.
  Connection(Socket socket, const Channel::Shared& shared, Rank peer, std::string name, Host& host);

  // `early` holds bytes that arrived with the handshake. `accepted`: this side sends the first frame.
  void start(ConstBytes early, bool accepted);
  Channel& channel() { return channel_; }
  // Writes queued bytes until the socket is full.
  void flush();
  // Sends kBye and ends once the peer has sent it, too. Requires Channel::fail() before.
  void leave();
  // Ends at once, without a call to the host.
  void close();
  bool open() const { return open_; }
  // Returns the shortest round trip measured by the kernel; zero if it does not report one.
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
