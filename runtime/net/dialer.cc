#include "runtime/net/dialer.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/net/endpoints.h"
#include "runtime/rendezvous/asio_context.h"
#include "runtime/rendezvous/sockets.h"

namespace sirtaki::net {

using boost::asio::ip::tcp;

namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(500);

}  // namespace

Dialer::Dialer(Setup setup) : setup_(std::move(setup)) {
  for (const std::string& text : setup_.endpoints) {
    const auto parsed = parse_endpoint(text);
    boost::system::error_code error;
    const auto address = parsed ? boost::asio::ip::make_address(parsed->address, error) : boost::asio::ip::address();
    if (parsed && !error) {
      targets_.push_back({text, tcp::endpoint(address, parsed->port)});
    } else {
      last_error_ = "'" + text + "' is not an address with a port";
    }
  }
}

void Dialer::run(Callback callback) {
  callback_ = std::move(callback);
  deadline_ = setup_.loop->now() + setup_.timeout;
  setup_.loop->post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->attempt();
    }
  });
}

std::string Dialer::last_error() const {
  if (greeting_ && greeting_->proven()) {
    return targets_[at_].text + ": it answers, but has not come as far as connecting (stopped, or slow to start)";
  }
  return last_error_;
}

void Dialer::abandon() {
  callback_ = Callback();
  setup_.loop->cancel(timer_);
  if (greeting_) {
    greeting_->abandon();
  }
  socket_.reset();
}

void Dialer::attempt() {
  if (!callback_) {
    return;
  }
  const Duration left = deadline_ - setup_.loop->now();
  if (targets_.empty() || left <= Duration::zero()) {
    finish(Status(targets_.empty() ? Code::kUnavailable : Code::kTimeout, last_error_));
    return;
  }
  at_ %= targets_.size();
  const tcp::endpoint& endpoint = targets_[at_].endpoint;
  socket_ = std::make_unique<tcp::socket>(rendezvous::io_context_of(*setup_.loop));
  // Asio's own sockets stay open in processes that the program starts.
  const int fd = ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  if (fd < 0) {
    next("cannot make a socket: " + rendezvous::errno_text(errno), false);
    return;
  }
  socket_->assign(endpoint.protocol(), fd);
  // A host that answers nothing must not use up the time of the other addresses.
  const Duration share = std::max(left / static_cast<int>(2 * targets_.size()), Duration(std::chrono::seconds(1)));
  timer_ = setup_.loop->after(std::min(left, share), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self && self->socket_) {
      boost::system::error_code ignored;
      self->socket_->close(ignored);
    }
  });
  socket_->async_connect(endpoint, [weak = weak_from_this()](const boost::system::error_code& error) {
    if (const auto self = weak.lock()) {
      self->on_connect(error);
    }
  });
}

void Dialer::on_connect(const boost::system::error_code& error) {
  if (!callback_) {
    return;
  }
  setup_.loop->cancel(timer_);
  if (error || !socket_->is_open()) {
    next(error == boost::asio::error::operation_aborted || !error ? "no answer" : error.message(), false);
    return;
  }
  Greeting::Setup greeting_setup;
  greeting_setup.loop = setup_.loop;
  const Duration left = deadline_ - setup_.loop->now();
  greeting_setup.deadline = std::min(setup_.handshake_timeout, left);
  greeting_setup.welcome_bytes = setup_.welcome_bytes;
  greeting_setup.welcome_deadline = left;
  greeting_ = std::make_shared<Greeting>(
      greeting_setup, std::move(*socket_),
      rendezvous::Handshake::initiator(setup_.secret, rendezvous::Purpose::kData, setup_.hello));
  socket_.reset();
  greeting_->run([weak = weak_from_this()](Result<Greeted> result) {
    if (const auto self = weak.lock()) {
      self->on_greeted(std::move(result));
    }
  });
}

void Dialer::on_greeted(Result<Greeted> result) {
  const auto greeting = std::move(greeting_);
  if (!result) {
    next(std::string(result.status().text()), greeting->refused());
    return;
  }
  if (const Status status = setup_.check_welcome(ConstBytes(result->rest).first(setup_.welcome_bytes)); !status) {
    next(std::string(status.text()), true);
    return;
  }
  finish(std::move(result));
}

void Dialer::next(const std::string& error, bool hopeless) {
  last_error_ = targets_[at_].text + ": " + error;
  if (hopeless) {
    targets_.erase(targets_.begin() + static_cast<std::ptrdiff_t>(at_));
  } else {
    ++at_;
  }
  if (targets_.empty() || at_ < targets_.size()) {
    attempt();
    return;
  }
  const Duration pause = std::min(kFirstPause * (1 << std::min(rounds_++, 8)), kLongestPause);
  timer_ = setup_.loop->after(pause, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->attempt();
    }
  });
}

void Dialer::finish(Result<Greeted> result) {
  Callback callback = std::move(callback_);
  callback_ = Callback();
  callback(std::move(result));
}

}  // namespace sirtaki::net
