#include "runtime/net/tcp/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "runtime/net/tcp/round_trip.h"

namespace sirtaki::net {
namespace {

using boost::asio::ip::tcp;

// Limit of bytes moved in one direction before other connections and tasks run.
constexpr std::size_t kTurnBytes = 4 * 1024 * 1024;

void set_option(int fd, int level, int name, int value) {
  // Kernels without the option work, only less well, so the error is ignored.
  (void)::setsockopt(fd, level, name, &value, sizeof(value));
}

std::string error_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace

Connection::Connection(Socket socket, const Channel::Shared& shared, Rank peer, std::string name, Host& host)
    : socket_(std::move(socket.socket)),
      channel_(shared, peer, socket.fragment_bytes),
      name_(std::move(name)),
      host_(host) {
  boost::system::error_code ignored;
  socket_.native_non_blocking(true, ignored);
  const int fd = socket_.native_handle();
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  const auto dead_ms = std::chrono::duration_cast<std::chrono::milliseconds>(socket.dead_time).count();
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(dead_ms));
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(socket.unsent_bytes));
}

Duration Connection::round_trip() {
  return shortest_round_trip(socket_.native_handle());
}

void Connection::start(ConstBytes early, bool accepted) {
  if (accepted) {
    channel_.welcome();
  }
  if (const Status status = channel_.read(early); !status.ok()) {
    end(status);
    return;
  }
  wait_readable();
}

Status Connection::lost(const std::string& how) const {
  return {Code::kPeerLost, name_ + " is gone: " + how, {channel_.peer(), {}}};
}

void Connection::wait_readable() {
  socket_.async_wait(tcp::socket::wait_read, [weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (self && self->open_ && !error) {
      self->on_readable();
    }
  });
}

void Connection::wait_writable() {
  if (waits_writable_ || write_broken_) {
    return;
  }
  waits_writable_ = true;
  socket_.async_wait(tcp::socket::wait_write, [weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (self && self->open_ && !error) {
      self->waits_writable_ = false;
      self->flush();
      self->host_.on_progress();
    }
  });
}

void Connection::on_readable() {
  read_some(kTurnBytes);
  if (open_) {
    wait_readable();
  }
  host_.on_progress();
}

void Connection::read_some(std::size_t budget) {
  while (open_ && budget > 0) {
    std::array<iovec, 2> out{};
    msghdr message{};
    message.msg_iov = out.data();
    message.msg_iovlen = channel_.targets(out);
    const std::size_t wanted = out[0].iov_len + out[1].iov_len;
    const ssize_t count = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        end(channel_.peer_said_bye() ? Status() : lost(error_text(errno)));
      }
      return;
    }
    if (count == 0) {
      end(channel_.peer_said_bye() ? Status() : lost("it closed the connection without a word; its process has ended"));
      return;
    }
    const auto received = static_cast<std::size_t>(count);
    if (const Status status = channel_.arrived(received); !status.ok()) {
      end(status.with_context("data connection to " + name_));
      return;
    }
    // The next wait polls the socket again, and reports the rest.
    if (received < wanted) {
      return;
    }
    budget -= std::min(budget, received);
  }
}

void Connection::flush() {
  std::size_t rounds = 0;
  while (open_ && !write_broken_ && channel_.wants_write()) {
    // Each round writes at most one fragment.
    if (++rounds > 16 || !write_once()) {
      wait_writable();
      return;
    }
  }
  after_write();
}

bool Connection::write_once() {
  std::array<iovec, 64> pieces{};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = channel_.gather(pieces);
  const ssize_t count = ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count >= 0) {
    channel_.written(static_cast<std::size_t>(count));
    return true;
  }
  if (errno == EINTR) {
    return true;
  }
  if (errno != EAGAIN && errno != EWOULDBLOCK) {
    on_write_error(errno);
    return true;
  }
  return false;
}

void Connection::on_write_error(int error) {
  // Bytes that the peer sent before it closed may still be unread, perhaps its kBye.
  write_broken_ = true;
  read_some(kTurnBytes);
  if (open_) {
    end(channel_.peer_said_bye() ? Status() : lost(error_text(error)));
  }
}

void Connection::after_write() {
  if (open_ && leaving_ && !said_all_ && !channel_.wants_write()) {
    said_all_ = true;
    (void)::shutdown(socket_.native_handle(), SHUT_WR);
  }
}

void Connection::leave() {
  if (!open_ || leaving_) {
    return;
  }
  leaving_ = true;
  channel_.say_bye();
  flush();
}

void Connection::close() {
  open_ = false;
  boost::system::error_code ignored;
  socket_.close(ignored);
}

void Connection::end(const Status& cause) {
  const auto self = shared_from_this();
  close();
  const Status left(Code::kPeerLost, name_ + " has left", {channel_.peer(), {}});
  channel_.fail(cause.ok() ? left : cause, true);
  host_.on_end(channel_.peer(), leaving_ ? Status() : cause);
}

}  // namespace sirtaki::net
