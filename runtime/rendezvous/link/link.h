// Link: one authenticated control connection as a stream of frames, on the loop's thread. Used by Server and Client.
//
// Owned by: a shared_ptr of its user and, while I/O is in flight, of the loop. Knows nothing of heartbeats: its owner
// asks last_received(). The write queue is bounded: a peer that does not read ends the link.
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
  // The connection ended or broke the protocol (Code::kCorrupt). Once, last; never from inside send().
  virtual void on_end(const Status& cause) = 0;
};

class Link : public std::enable_shared_from_this<Link> {
 public:
  // `handler` outlives the link, or calls close() or finish() first.
  Link(AsioLoop& loop, boost::asio::ip::tcp::socket socket, LinkHandler& handler);

  // `received`: bytes that came behind the handshake. Frames may be delivered before it returns.
  void start(ConstBytes received);
  void send(FrameType type, ConstBytes payload);
  // Both end the link without a callback. finish() first writes what is queued and waits until the peer has closed its
  // side, for at most a second; what still arrives is dropped.
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
