#include "runtime/net/greeting.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <string>
#include <utility>

namespace sirtaki::net {

Greeting::Greeting(const Setup& setup, Socket socket, rendezvous::Handshake handshake)
    : setup_(setup), socket_(std::move(socket)), handshake_(std::move(handshake)) {}

void Greeting::run(Callback callback) {
  callback_ = std::move(callback);
  arm(setup_.deadline, "the other side did not complete the handshake");
  advance();
}

void Greeting::arm(Duration deadline, const char* what) {
  setup_.loop->cancel(timer_);
  timer_ = setup_.loop->after(deadline, [weak = weak_from_this(), what] {
    if (const auto self = weak.lock()) {
      self->finish({Code::kTimeout, what});
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
                                 self->finish(unavailable(error.message()));
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
                              self->finish(unavailable(error.message()));
                            } else {
                              self->on_read(count);
                            }
                          });
}

void Greeting::on_read(std::size_t count) {
  ConstBytes received(input_.data(), count);
  if (!handshake_.done()) {
    const Result<std::size_t> used = handshake_.feed(received);
    if (!used) {
      refused_ = true;
      finish(used.status());
      return;
    }
    received = received.subspan(*used);
    if (handshake_.done()) {
      arm(setup_.welcome_deadline, "it answers, but has not come as far as connecting (stopped, or slow to start)");
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
  if (!status) {
    boost::system::error_code ignored;
    socket_.close(ignored);
    callback(std::move(status));
    return;
  }
  callback(Greeted{std::move(socket_), std::vector<std::byte>(), std::move(rest_)});
}

}  // namespace sirtaki::net
