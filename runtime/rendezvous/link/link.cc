#include "runtime/rendezvous/link/link.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::rendezvous {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kMaxQueued = 4 * kMaxMessage;
constexpr auto kFinishTime = std::chrono::seconds(1);

Status end_of_connection(const boost::system::error_code& error) {
  if (error == asio::error::eof) {
    return {Code::kPeerLost, "the connection was closed"};
  }
  if (error == asio::error::timed_out) {
    return {Code::kPeerLost, "the host no longer answers (network down, host down or cable out)"};
  }
  return {Code::kPeerLost, "the connection broke: " + error.message()};
}

}  // namespace

Link::Link(AsioLoop& loop, asio::ip::tcp::socket socket, LinkHandler& handler)
    : loop_(loop), socket_(std::move(socket)), handler_(&handler), last_received_(loop.now()) {}

void Link::start(ConstBytes received) {
  SRT_IN_LOOP(loop_);
  const auto self = shared_from_this();
  while (!received.empty()) {
    const Bytes room = decoder_.room();
    const std::size_t size = std::min(room.size(), received.size());
    std::copy_n(received.begin(), size, room.begin());
    decoder_.added(size);
    received = received.subspan(size);
    deliver();
    if (closed_) {
      return;
    }
  }
  read();
}

void Link::read() {
  const Bytes room = decoder_.room();
  socket_.async_read_some(asio::buffer(room.data(), room.size()),
                          [self = shared_from_this()](const boost::system::error_code& error, std::size_t size) {
                            self->on_read(error, size);
                          });
}

void Link::on_read(const boost::system::error_code& error, std::size_t size) {
  if (closed_) {
    return;
  }
  if (error) {
    end(end_of_connection(error));
    return;
  }
  last_received_ = loop_.now();
  decoder_.added(size);
  try {
    deliver();
  } catch (...) {
    // A bug in the handler, which the loop reports. End the connection: it would stay unread until it counts as silent.
    loop_.post([self = shared_from_this()] { self->end(bug("a message could not be handled; see the log")); });
    throw;
  }
  if (!closed_) {
    read();
  }
}

void Link::deliver() {
  while (!closed_) {
    const auto frame = decoder_.next();
    if (!frame) {
      end(frame.status());
      return;
    }
    if (!frame->has_value()) {
      return;
    }
    if (!finishing_) {
      handler_->on_frame(**frame);
    }
  }
}

void Link::send(FrameType type, ConstBytes payload) {
  SRT_IN_LOOP(loop_);
  if (closed_ || finishing_) {
    return;
  }
  append_frame(queued_, type, payload);
  if (queued_.size() > kMaxQueued) {
    queued_.clear();
    loop_.post([self = shared_from_this()] {
      self->end({Code::kExhausted, "the peer does not read: over 64 MiB of control messages wait for it"});
    });
    return;
  }
  if (!in_write_) {
    write();
  }
}

void Link::write() {
  in_write_ = true;
  writing_.clear();
  writing_.swap(queued_);
  asio::async_write(socket_, asio::buffer(writing_.data(), writing_.size()),
                    [self = shared_from_this()](const boost::system::error_code& error, std::size_t /*size*/) {
                      self->on_written(error);
                    });
}

void Link::on_written(const boost::system::error_code& error) {
  in_write_ = false;
  if (closed_) {
    return;
  }
  if (error) {
    // Frames that the peer sent before its end are still unread, so read() reports the end.
    queued_.clear();
    return;
  }
  if (!queued_.empty()) {
    write();
  } else if (finishing_) {
    end_writing();
  }
}

// Closing with unread bytes would reset the connection and could destroy bytes that the peer has not read yet. Hence
// reading goes on until the peer closes, too, or the timer of finish() fires.
void Link::end_writing() {
  boost::system::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void Link::finish() {
  SRT_IN_LOOP(loop_);
  if (closed_ || finishing_) {
    return;
  }
  finishing_ = true;
  if (!in_write_) {
    end_writing();
  }
  finish_timer_ = loop_.after(kFinishTime, [self = shared_from_this()] { self->close(); });
}

void Link::close() {
  SRT_IN_LOOP(loop_);
  if (std::exchange(closed_, true)) {
    return;
  }
  loop_.cancel(finish_timer_);
  queued_.clear();
  boost::system::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

void Link::end(const Status& cause) {
  if (closed_) {
    return;
  }
  const bool notify = !finishing_;
  close();
  if (notify) {
    handler_->on_end(cause);
  }
}

}  // namespace sirtaki::rendezvous
