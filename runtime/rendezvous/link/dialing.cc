#include "runtime/rendezvous/link/dialing.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/rendezvous/link/asio_context.h"

namespace sirtaki::rendezvous {

using boost::asio::ip::tcp;

namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(500);
constexpr Duration kLongestAttempt = std::chrono::seconds(5);  // time for one address before the next one
constexpr Duration kShortestAttempt = std::chrono::seconds(1);
constexpr Duration kRefusedPatience = std::chrono::seconds(2);
constexpr Duration kLookAgain = std::chrono::milliseconds(10);

SocketAddress address_of(const addrinfo& info) {
  SocketAddress address;
  std::memcpy(&address.storage, info.ai_addr, info.ai_addrlen);
  address.size = info.ai_addrlen;
  return address;
}

std::string connect_error(const boost::system::error_code& error) {
  if (error == boost::asio::error::operation_aborted) {
    return "no answer: the host is down or a firewall drops the packets";
  }
  if (error == boost::asio::error::connection_refused) {
    return "connection refused: nothing listens there (not started yet, ended, or another address)";
  }
  if (error == boost::asio::error::network_unreachable || error == boost::asio::error::host_unreachable) {
    return error.message() + ": this host has no working network path to it";
  }
  return error.message();
}

}  // namespace

// Resolves names on a thread of its own, because getaddrinfo() cannot be interrupted. Shared with that thread, which
// may outlive the Dialing.
struct Dialing::Lookup {
  std::mutex mutex;
  bool ready = false;
  std::vector<Target> found;
  std::string error;

  void run(const std::vector<std::string>& addresses, int flags) {
    std::vector<Target> targets;
    std::string why;
    for (const std::string& text : addresses) {
      const auto where = parse_host_port(text);
      int code = 0;
      const AddrInfo list = where ? look_up(*where, flags, code) : nullptr;
      for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
        targets.push_back({text, address_of(*info)});
      }
      if (!where) {
        why = std::string(where.status().text());
      } else if (list == nullptr) {
        why = "the name '" + where->host + "' does not resolve (" + ::gai_strerror(code) +
              "); fix: use an IP address, or repair DNS or /etc/hosts on this host";
      }
    }
    const std::lock_guard lock(mutex);
    found = std::move(targets);
    error = std::move(why);
    ready = true;
  }
};

Dialing::Dialing(Setup setup) : setup_(std::move(setup)), pause_(kFirstPause) {}

void Dialing::run(Callback callback) {
  callback_ = std::move(callback);
  deadline_ = setup_.loop->now() + std::min(setup_.timeout, kLongestTimeout);
  later(Duration::zero(), &Dialing::begin_round);
}

void Dialing::later(Duration delay, void (Dialing::*what)()) {
  timer_ = setup_.loop->after(delay, [weak = weak_from_this(), what] {
    const auto self = weak.lock();
    if (self && self->callback_) {
      (self.get()->*what)();
    }
  });
}

std::string Dialing::last_error() const {
  if (greeting_ && greeting_->proven()) {
    return "it answers, but has not come as far as connecting (stopped, or slow to start)";
  }
  return last_error_;
}

void Dialing::abandon() {
  callback_ = Callback();
  setup_.loop->cancel(timer_);
  if (greeting_) {
    greeting_->abandon();
  }
  socket_.reset();
}

void Dialing::begin_round() {
  lookup_ = std::make_shared<Lookup>();
  lookup_->run(setup_.addresses, AI_NUMERICHOST);
  if (lookup_->found.size() == setup_.addresses.size()) {
    await_lookup();
    return;
  }
  last_address_ = setup_.addresses.empty() ? "" : setup_.addresses.front();
  last_error_ = "its name was not resolved in time; fix: use an IP address or repair DNS";
  lookup_ = std::make_shared<Lookup>();
  std::thread([lookup = lookup_, addresses = setup_.addresses] {
    lookup->run(addresses, AI_ADDRCONFIG);
  }).detach();  // lint: allow(detach) getaddrinfo cannot be interrupted; it touches shared state only
  await_lookup();
}

void Dialing::await_lookup() {
  std::vector<Target> found;
  std::string error;
  {
    const std::lock_guard lock(lookup_->mutex);
    if (!lookup_->ready) {
      if (left() <= Duration::zero()) {
        return finish(Status(Code::kTimeout, last_error()));
      }
      return later(kLookAgain, &Dialing::await_lookup);
    }
    found = std::move(lookup_->found);
    error = std::move(lookup_->error);
  }
  lookup_.reset();
  set_targets(std::move(found), error);
}

void Dialing::set_targets(std::vector<Target> found, const std::string& error) {
  std::erase_if(found, [this](const Target& target) { return struck_.contains(target.address.text()); });
  targets_ = std::move(found);
  at_ = 0;
  if (targets_.empty()) {
    if (!error.empty()) {
      last_error_ = error;
    }
    return end_round();
  }
  attempt();
}

UniqueFd Dialing::open(const SocketAddress& address) {
  // Not opened by Asio, whose sockets stay open in processes that the program starts.
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (fd.is_open() && setup_.silence_timeout > Duration::zero()) {
    set_control_options(fd.get(), setup_.silence_timeout);
  }
  return fd;
}

void Dialing::attempt() {
  if (at_ >= targets_.size()) {
    return end_round();
  }
  if (left() <= Duration::zero()) {
    return finish(Status(Code::kTimeout, last_error()));
  }
  ++attempts_;
  const Target& target = targets_[at_];
  last_address_ = target.text;
  UniqueFd fd = open(target.address);
  if (!fd.is_open()) {
    return next("cannot make a socket: " + errno_text(errno));
  }
  socket_ = std::make_unique<tcp::socket>(io_context_of(*setup_.loop));
  socket_->assign(target.address.family() == AF_INET6 ? tcp::v6() : tcp::v4(), fd.release());
  // An address that does not answer must not use up the time of the others.
  const Duration share =
      std::clamp<Duration>(left() / static_cast<int>(2 * targets_.size()), kShortestAttempt, kLongestAttempt);
  timer_ = setup_.loop->after(std::min(left(), share), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self && self->socket_) {
      boost::system::error_code ignored;
      self->socket_->close(ignored);
    }
  });
  tcp::endpoint endpoint;
  endpoint.resize(target.address.size);
  std::memcpy(endpoint.data(), target.address.get(), target.address.size);
  socket_->async_connect(endpoint, [weak = weak_from_this()](const boost::system::error_code& error) {
    if (const auto self = weak.lock()) {
      self->on_connect(error);
    }
  });
}

void Dialing::on_connect(const boost::system::error_code& error) {
  if (!callback_) {
    return;
  }
  setup_.loop->cancel(timer_);
  boost::system::error_code outcome = error;
  if (!socket_->is_open()) {
    outcome = boost::asio::error::operation_aborted;
  } else if (!error && local_address_of(socket_->native_handle()) == remote_address_of(socket_->native_handle())) {
    // TCP connects a socket to itself if the system picks the unused target port as the local port.
    outcome = boost::asio::error::connection_refused;
  }
  if (outcome) {
    socket_.reset();
    return next(connect_error(outcome));
  }
  greet();
}

void Dialing::greet() {
  Greeting::Setup greeting_setup;
  greeting_setup.loop = setup_.loop;
  greeting_setup.deadline = std::min(setup_.handshake_timeout, left());
  greeting_setup.welcome_bytes = setup_.welcome_bytes;
  greeting_setup.welcome_deadline = left();
  greeting_ = std::make_shared<Greeting>(greeting_setup, std::move(*socket_),
                                         Handshake::initiator(setup_.secret, setup_.purpose, setup_.hello));
  socket_.reset();
  greeting_->run([weak = weak_from_this()](Result<Greeted> result) {
    if (const auto self = weak.lock()) {
      self->on_greeted(std::move(result));
    }
  });
}

void Dialing::on_greeted(Result<Greeted> result) {
  const auto greeting = std::move(greeting_);
  greeting_.reset();
  if (greeting->refused()) {
    return refuse(result.status());
  }
  if (!result) {
    if (result.status().code() == Code::kTimeout) {
      return next(greeting->proven() ? "it answers, but has not come as far as connecting (stopped, or slow to start)"
                                     : "connected, but the peer did not answer the handshake (stopped, or not a "
                                       "Sirtaki server)");
    }
    return next("the connection was closed during the handshake (another service's port, or the job is ending)");
  }
  if (setup_.check_welcome) {
    const Status status = setup_.check_welcome(ConstBytes(result->rest).first(setup_.welcome_bytes));
    if (!status.ok()) {
      return refuse(status);
    }
  }
  finish(std::move(result));
}

void Dialing::next(std::string error) {
  last_error_ = std::move(error);
  ++at_;
  attempt();
}

void Dialing::refuse(const Status& status) {
  struck_.insert(targets_[at_].address.text());
  if (refused_.ok()) {
    refused_ = status;
    refused_at_ = setup_.loop->now();
  }
  next(std::string(status.text()));
}

void Dialing::end_round() {
  const bool all =
      std::ranges::all_of(targets_, [this](const Target& target) { return struck_.contains(target.address.text()); });
  if (!refused_.ok() && (all || setup_.loop->now() - refused_at_ > kRefusedPatience)) {
    return finish(refused_);
  }
  if (left() <= Duration::zero() || setup_.addresses.empty()) {
    return finish(Status(Code::kTimeout, last_error()));
  }
  later(std::min(pause_, left()), &Dialing::begin_round);
  pause_ = std::min(2 * pause_, kLongestPause);
}

void Dialing::finish(Result<Greeted> result) {
  setup_.loop->cancel(timer_);
  Callback callback = std::move(callback_);
  callback_ = Callback();
  callback(std::move(result));
}

}  // namespace sirtaki::rendezvous
