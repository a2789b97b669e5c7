#include "launcher/agent/channel.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <system_error>
#include <utility>

#include "runtime/rendezvous/link/sockets.h"

namespace sirtaki::launcher {

namespace asio = boost::asio;
using boost::system::error_code;

Result<ChannelEnds> socket_ends(FileDescriptor socket, rendezvous::StreamCipher cipher,
                                std::vector<std::byte> received) {
  FileDescriptor out(fcntl(socket.get(), F_DUPFD_CLOEXEC, 3));
  if (out.get() < 0) {
    return unavailable("cannot use its connection: " + std::generic_category().message(errno));
  }
  // Pings watch the connection from here. A launcher that is stopped reads nothing, and must not lose its hosts.
  rendezvous::set_control_options(socket.get(), Duration::zero());
  return ChannelEnds{std::move(socket), std::move(out), std::make_unique<rendezvous::StreamCipher>(std::move(cipher)),
                     std::move(received)};
}

FrameChannel::FrameChannel(asio::io_context& io, ChannelEnds ends, bool expect_preamble, Handlers handlers)
    : in_(io, ends.in.release()),
      out_(io, ends.out.release()),
      cipher_(std::move(ends.cipher)),
      received_(std::move(ends.received)),
      decoder_(expect_preamble),
      handlers_(std::move(handlers)) {}

void FrameChannel::start() {
  if (received_.empty()) {
    return read_more();
  }
  asio::post(in_.get_executor(), [this] { ended_ ? void() : take(std::exchange(received_, {})); });
}

// Delivers the frames that are complete with these bytes, and reads on.
void FrameChannel::take(ConstBytes bytes) {
  std::vector<std::byte> plain;
  Status status = cipher_ ? cipher_->open(bytes, plain) : Status();
  std::vector<Frame> frames;
  status.update(decoder_.feed(cipher_ ? ConstBytes(plain) : bytes, frames));
  for (const Frame& frame : frames) {
    if (ended_) {
      return;
    }
    handlers_.on_frame(frame);
  }
  if (!status.ok()) {
    end(status);
  } else if (!ended_) {
    read_more();
  }
}

void FrameChannel::read_more() {
  in_.async_read_some(asio::buffer(buffer_), [this](const error_code& error, std::size_t size) {
    if (ended_ || error == asio::error::operation_aborted) {
      return;
    }
    if (error) {
      end(error == asio::error::eof ? Status() : unavailable(error.message()));
      return;
    }
    take(ConstBytes(buffer_.data(), size));
  });
}

void FrameChannel::send(FrameType type, ConstBytes payload) {
  if (ended_ || finish_after_queue_ || !out_.is_open()) {
    return;
  }
  enqueue(encode_frame(type, payload));
}

void FrameChannel::send_raw(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  enqueue({bytes.begin(), bytes.end()});
}

void FrameChannel::enqueue(std::vector<std::byte> bytes) {
  queue_.push_back(cipher_ ? cipher_->seal(bytes) : std::move(bytes));
  queued_ += queue_.back().size();
  write_more();
}

void FrameChannel::write_more() {
  if (writing_ || ended_ || !out_.is_open()) {
    return;
  }
  if (queue_.empty()) {
    if (finish_after_queue_) {
      error_code ignored;
      shutdown(out_.native_handle(), SHUT_WR);  // a socket is open for reading still
      out_.close(ignored);
    }
    return;
  }
  writing_ = true;
  asio::async_write(out_, asio::buffer(queue_.front()), [this](const error_code& error, std::size_t) {
    writing_ = false;
    if (ended_ || error == asio::error::operation_aborted) {
      return;
    }
    queued_ -= queue_.front().size();
    queue_.pop_front();
    if (error) {
      // The reading side reports the cause, after all bytes that the other side sent before its end.
      error_code ignored;
      out_.close(ignored);
      queue_.clear();
      queued_ = 0;
      return;
    }
    write_more();
  });
}

void FrameChannel::finish_writing() {
  finish_after_queue_ = true;
  write_more();
}

void FrameChannel::close() {
  ended_ = true;
  error_code ignored;
  in_.close(ignored);
  out_.close(ignored);
}

void FrameChannel::end(const Status& status) {
  if (ended_) {
    return;
  }
  ended_ = true;
  handlers_.on_end(status);
}

}  // namespace sirtaki::launcher
