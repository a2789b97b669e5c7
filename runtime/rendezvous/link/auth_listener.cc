#include "runtime/rendezvous/link/auth_listener.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/check.h"
#include "runtime/rendezvous/link/asio_context.h"
#include "runtime/rendezvous/link/greeting.h"
#include "runtime/rendezvous/link/sockets.h"

namespace sirtaki::rendezvous {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr auto kWarningPause = std::chrono::seconds(10);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

// A connection that has not proved the secret yet.
class AuthListener::Visitor : public std::enable_shared_from_this<Visitor> {
 public:
  Visitor(AuthListener& gate, tcp::socket socket, std::string address) : gate_(gate), address_(std::move(address)) {
    Greeting::Setup setup;
    setup.loop = &gate.loop_;
    setup.accepts = true;
    setup.deadline = std::min(gate.options_.handshake_timeout, kLongestTimeout);
    greeting_ = std::make_shared<Greeting>(setup, std::move(socket),
                                           Handshake::acceptor(gate.options_.secret, gate.options_.purpose));
  }

  void start() {
    greeting_->run([weak = weak_from_this()](Result<Greeted> result) {
      if (const auto self = weak.lock()) {
        self->on_greeted(std::move(result));
      }
    });
  }
  // Ends the handshake of a visitor that the listener drops; no callback follows.
  void close() { greeting_->abandon(); }
  const std::string& address() const { return address_; }

  Visitors::iterator place;

 private:
  void on_greeted(Result<Greeted> result) {
    if (!result) {
      const Code code = result.status().code();
      if (code == Code::kPeerLost && greeting_->silent()) {
        return gate_.forget(*this);  // it has only looked whether somebody listens, as the launcher does on other hosts
      }
      gate_.refuse(*this, greeting_->refused()     ? std::string(result.status().text())
                          : code == Code::kTimeout ? "no proof of the secret in time"
                                                   : "it went away during the handshake");
      return;
    }
    AuthListener& gate = gate_;
    Guest guest{std::move(result->socket), address_, std::move(result->hello), std::move(result->rest),
                result->session};
    gate.visitors_.erase(place);
    gate.handler_.on_guest(std::move(guest));
  }

  AuthListener& gate_;
  std::string address_;
  std::shared_ptr<Greeting> greeting_;
};

AuthListener::AuthListener(AsioLoop& loop, GateOptions options, GateHandler& handler)
    : loop_(loop),
      options_(std::move(options)),
      handler_(handler),
      acceptor_(io_context_of(loop)),
      self_(std::make_shared<AuthListener*>(this)) {}

AuthListener::~AuthListener() {
  *self_ = nullptr;
  loop_.cancel(accept_pause_);
  for (const auto& visitor : visitors_) {
    visitor->close();
  }
  boost::system::error_code ignored;
  acceptor_.close(ignored);
}

Result<std::unique_ptr<AuthListener>> AuthListener::open(AsioLoop& loop, GateOptions options, GateHandler& handler) {
  if (!options.secret.is_set()) {
    return invalid_argument("a server needs the job's secret; none is set");
  }
  std::unique_ptr<AuthListener> gate(new AuthListener(loop, std::move(options), handler));
  Status status;
  const bool ran = loop.run_sync([&] {
    status = gate->listen();
    if (status.ok()) {
      gate->start();
    } else {
      gate.reset();
    }
  });
  if (!ran) {
    return Status(Code::kShutdown, "the loop has been stopped");
  }
  SRT_TRY(status);
  return gate;
}

Status AuthListener::try_port(const addrinfo& address, std::uint16_t port, int& error) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd.is_open()) {
    error = errno;
    return unavailable("cannot make a socket: " + errno_text(error));
  }
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ai_family == AF_INET6) {
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    reinterpret_cast<sockaddr_in6*>(address.ai_addr)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(address.ai_addr)->sin_port = htons(port);
  }
  if (::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    error = errno;
    return unavailable(errno_text(error));
  }
  port_ = local_address_of(fd.get()).port();
  acceptor_.assign(address.ai_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd.release());
  return {};
}

Status AuthListener::listen_at(const std::string& where, bool& in_use) {
  int error = 0;
  const AddrInfo address = look_up({where, 0}, AI_NUMERICHOST | AI_PASSIVE, error);
  if (address == nullptr) {
    return invalid_argument("cannot listen on '" + where +
                            "': not an IP address; fix: use an address of this host, localhost, 0.0.0.0 or ::");
  }
  const int first = options_.port_first;
  const int last = first == 0 ? 0 : std::max<int>(first, options_.port_last);
  Status status;
  for (int port = first; port <= last; ++port) {
    status = try_port(*address, static_cast<std::uint16_t>(port), error);
    if (status.ok()) {
      return status;
    }
  }
  in_use = error == EADDRINUSE;
  const std::string range = first == 0      ? "any port"
                            : first == last ? "port " + std::to_string(first)
                                            : "any port from " + std::to_string(first) + " to " + std::to_string(last);
  return unavailable("cannot listen on " + range + " of " + where + ": " + std::string(status.text()) +
                     "; fix: end the process that holds it, or choose another port (0: any free one) or address");
}

// A host may lack IPv4 or IPv6: "all addresses" and "localhost" mean the families that it has.
Status AuthListener::listen() {
  std::vector<std::string> candidates{options_.bind_address};
  if (options_.bind_address.empty() || options_.bind_address == "::") {
    candidates = {"::", "0.0.0.0"};
  } else if (options_.bind_address == "localhost") {
    candidates = {"127.0.0.1", "::1"};
  }
  Status failure;
  for (const std::string& where : candidates) {
    bool in_use = false;
    Status status = listen_at(where, in_use);
    if (status.ok() || in_use) {
      return status;
    }
    failure.update(status);
  }
  return failure;
}

void AuthListener::start() {
  acceptor_.native_non_blocking(true);
  wait_for_visitors();
}

void AuthListener::wait_for_visitors() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [self = self_](const boost::system::error_code& error) {
    if (!error && *self != nullptr) {
      (*self)->accept_all();
    }
  });
}

void AuthListener::accept_all() {
  const auto self = self_;
  while (*self != nullptr) {
    // Set close-on-exec at once: another thread of the launcher may start a process between two calls.
    const int fd = ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      admit(fd);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) {
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_for_visitors();
      return;
    }
    // Descriptors or memory have run out. The connection stays in the queue, so pause: waiting for it would spin.
    handler_.on_gate_warning("cannot accept connections for the moment: " + errno_text(errno));
    accept_pause_ = loop_.after(kAcceptPause, [this] { wait_for_visitors(); });
    return;
  }
}

void AuthListener::admit(int fd) {
  UniqueFd owned(fd);
  const SocketAddress address = remote_address_of(fd);
  tcp::socket socket(io_context_of(loop_));
  boost::system::error_code error;
  socket.assign(local_address_of(fd).family() == AF_INET6 ? tcp::v6() : tcp::v4(), fd, error);
  if (error) {
    return;
  }
  owned.release();
  socket.non_blocking(true, error);
  if (visitors_.size() >= static_cast<std::size_t>(std::max(1, options_.max_visitors))) {
    refuse(*visitors_.front(), "too many connections that prove nothing");
  }
  auto visitor = std::make_shared<Visitor>(*this, std::move(socket), address.text());
  visitor->place = visitors_.insert(visitors_.end(), visitor);
  visitor->start();
}

void AuthListener::forget(Visitor& visitor) {
  const auto self = visitor.shared_from_this();
  visitors_.erase(visitor.place);
  visitor.close();
}

void AuthListener::refuse(Visitor& visitor, const std::string& reason) {
  const std::string address = visitor.address();
  forget(visitor);
  count_stranger(address, reason);
}

void AuthListener::count_stranger(const std::string& address, const std::string& reason) {
  const std::uint64_t count = strangers_.fetch_add(1, std::memory_order_relaxed) + 1;
  const TimePoint now = loop_.now();
  if (reported_ != 0 && now - last_report_ < kWarningPause) {
    return;
  }
  const std::uint64_t fresh = count - std::exchange(reported_, count);
  last_report_ = now;
  std::string line = "refused a connection from " + address + ": " + reason;
  if (fresh > 1) {
    line += " (and " + std::to_string(fresh - 1) + " more since the last such line)";
  }
  handler_.on_gate_warning(line);
}

}  // namespace sirtaki::rendezvous
