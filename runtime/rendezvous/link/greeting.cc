#include "runtime/rendezvous/link/greeting.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <string>
#include <utility>

namespace sirtaki::rendezvous {

Greeting::Greeting(const Setup& setup, Socket socket, Handshake handshake)
    : setup_(setup), socket_(std::move(socket)), handshake_(std::move(handshake)) {}

void Greeting::run(Callback callback) {
  callback_ = std::move(callback);
  arm(setup_.deadline);
  advance();
}

void Greeting::arm(Duration deadline) {
  setup_.loop->cancel(timer_);
  timer_ = setup_.loop->after(deadline, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->finish({Code::kTimeout, ""});
    }
  });
}

void Greeting::abandon() {
  callback_ = Callback();
  setup_.loop->cancel(timer_);
  boost::system::error_code ignored;
  socket_.close(ignored);
}

void Greeting::advance() {
  output_ = handshake_.take_output();
  if (!output_.empty()) {
    boost::asio::async_write(socket_, boost::asio::buffer(output_),
                             [self = shared_from_this()](const boost::system::error_code& error, std::size_t) {
                               if (error) {
                                 self->finish({Code::kPeerLost, error.message()});
                               } else {
                                 self->advance();
                               }
                             });
  } else if (handshake_.done() && rest_.size() >= setup_.welcome_bytes) {
    finish({});
  } else {
    read();
  }
}

void Greeting::read() {
  socket_.async_read_some(boost::asio::buffer(input_),
                          [self = shared_from_this()](const boost::system::error_code& error, std::size_t count) {
                            if (error) {
                              self->finish({Code::kPeerLost, error.message()});
                            } else {
                              self->on_read(count);
                            }
                          });
}

void Greeting::on_read(std::size_t count) {
  if (!callback_) {
    return;
  }
  silent_ = false;
  ConstBytes received(input_.data(), count);
  if (!handshake_.done()) {
    const Result<std::size_t> used = handshake_.feed(received);
    if (!used) {
      refused_ = true;
      // Sends the protocol version of this side, a possible reason. It always fits into the socket buffer.
      boost::system::error_code ignored;
      socket_.write_some(boost::asio::buffer(handshake_.take_output()), ignored);
      finish(used.status());
      return;
    }
    received = received.subspan(*used);
    if (handshake_.done()) {
      arm(setup_.welcome_bytes == 0 ? setup_.deadline : setup_.welcome_deadline);
    }
  }
  rest_.insert(rest_.end(), received.begin(), received.end());
  advance();
}

void Greeting::finish(Status status) {
  if (!callback_) {
    return;
  }
  setup_.loop->cancel(timer_);
  Callback callback = std::move(callback_);
  callback_ = Callback();
  if (!status.ok()) {
    boost::system::error_code ignored;
    socket_.close(ignored);
    callback(std::move(status));
    return;
  }
  std::vector<std::byte> hello;
  if (setup_.accepts) {
    hello = handshake_.peer_hello();
  }
  callback(Greeted{std::move(socket_), std::move(hello), std::move(rest_), handshake_.session_key()});
}

}  // namespace sirtaki::rendezvous
