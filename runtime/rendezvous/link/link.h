// Link: an authenticated control connection as a stream of frames. Used by Server, Client and Branch on the loop
// thread.
//
// The write queue is bounded: a peer that does not read ends the link. The user sends heartbeats, see last_received().
// Owned by: its user and, while I/O is in flight, the loop (shared_ptr).
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <vector>

#include "runtime/rendezvous/link/asio_loop.h"
#include "runtime/rendezvous/link/frame.h"

namespace sirtaki::rendezvous {

class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  virtual void on_frame(const Frame& frame) = 0;
  // The connection ended, or the peer broke the protocol (Code::kCorrupt). Called once, last, never from inside send().
  virtual void on_end(const Status& cause) = 0;
};

class Link : public std::enable_shared_from_this<Link> {
 public:
  // `handler` outlives the link, or calls close() or finish() first.
  Link(AsioLoop& loop, boost::asio::ip::tcp::socket socket, LinkHandler& handler);

  // Starts to deliver frames, possibly before it returns. `received` holds bytes that followed the handshake.
  void start(ConstBytes received);
  void send(FrameType type, ConstBytes payload);
  // Both end the link without a callback. finish() first writes the queued frames and waits at most a second for the
  // peer to close its side; frames that still arrive are dropped.
  void close();
  void finish();
  bool closed() const { return closed_; }
  TimePoint last_received() const { return last_received_; }

 private:
  void read();
  void on_read(const boost::system::error_code& error, std::size_t size);
  void deliver();
  void write();
  void on_written(const boost::system::error_code& error);
  void end_writing();
  void end(const Status& cause);

  AsioLoop& loop_;
  boost::asio::ip::tcp::socket socket_;
  LinkHandler* handler_;
  FrameDecoder decoder_;
  std::vector<std::byte> queued_;
  std::vector<std::byte> writing_;
  TimePoint last_received_;
  TimerId finish_timer_;
  bool in_write_ = false;
  bool finishing_ = false;
  bool closed_ = false;
};

}  // namespace sirtaki::rendezvous
