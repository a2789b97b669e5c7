#include "launcher/agent/channel.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/write.hpp>

namespace sirtaki::launcher {

namespace asio = boost::asio;
using boost::system::error_code;

FrameChannel::FrameChannel(asio::io_context& io, FileDescriptor in, FileDescriptor out, bool expect_preamble,
                           Handlers handlers)
    : in_(io, in.release()), out_(io, out.release()), decoder_(expect_preamble), handlers_(std::move(handlers)) {}

void FrameChannel::start() {
  read_more();
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
    std::vector<Frame> frames;
    const Status status = decoder_.feed(ConstBytes(buffer_.data(), size), frames);
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
  });
}

void FrameChannel::send(FrameType type, ConstBytes payload) {
  if (ended_ || finish_after_queue_ || !out_.is_open()) {
    return;
  }
  queue_.push_back(encode_frame(type, payload));
  queued_ += queue_.back().size();
  write_more();
}

void FrameChannel::send_raw(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  queue_.emplace_back(bytes.begin(), bytes.end());
  queued_ += text.size();
  write_more();
}

void FrameChannel::write_more() {
  if (writing_ || ended_ || !out_.is_open()) {
    return;
  }
  if (queue_.empty()) {
    if (finish_after_queue_) {
      error_code ignored;
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
