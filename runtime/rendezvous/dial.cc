#include "runtime/rendezvous/dial.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace sirtaki::rendezvous {

namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(500);
constexpr Duration kLongestAttempt = std::chrono::seconds(5);  // to one address, before the next one has its turn

int slice_ms(Duration left) {
  const Duration slice = std::clamp<Duration>(left, Duration::zero(), kCancelSlice);
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(slice).count());
}

Status aborted() {
  return {Code::kAborted, "connecting was cancelled"};
}

// Why an attempt failed, with what to do about it, and whether another attempt may succeed.
struct Failure {
  Status status;
  bool is_final = false;
};

class Dialer {
 public:
  Dialer(const DialOptions& options, const Loop& clock, MoveFunction<bool()>& cancelled)
      : options_(options),
        clock_(clock),
        cancelled_(cancelled),
        deadline_(clock.now() + std::min(options.connect_timeout, kLongestTimeout)) {}

  Result<Dialed> run();

 private:
  bool is_cancelled() { return cancelled_ && cancelled_(); }
  Duration left(TimePoint deadline) const { return deadline - clock_.now(); }
  bool resolve();
  bool resolve_by_name();
  bool attempt(const addrinfo& address);
  bool open(const addrinfo& address, TimePoint deadline);
  bool shake_hands(TimePoint deadline);
  bool exchange(Handshake& handshake, TimePoint deadline);
  bool read_once(Handshake& handshake);
  bool wait(short events, TimePoint deadline);
  bool pause(Duration length);
  bool fail(std::string what, bool is_final = false);
  bool is_over() const;
  Status verdict() const;

  const DialOptions& options_;
  const Loop& clock_;
  MoveFunction<bool()>& cancelled_;
  const TimePoint deadline_;
  std::string server_;  // whose turn it is
  HostPort where_;
  AddrInfo addresses_;
  Dialed dialed_;
  Failure failure_;
  int attempts_ = 0;
};

bool Dialer::fail(std::string what, bool is_final) {
  failure_ = {unavailable(std::move(what)), is_final};
  return false;
}

// False when cancelled or past the deadline (errno tells nothing then).
bool Dialer::wait(short events, TimePoint deadline) {
  while (true) {
    pollfd entry{dialed_.fd.get(), events, 0};
    const int ready = ::poll(&entry, 1, slice_ms(left(deadline)));
    if (ready > 0) {
      return true;
    }
    if (is_cancelled()) {
      failure_ = {aborted(), true};
      return false;
    }
    if (left(deadline) <= Duration::zero()) {
      return false;
    }
  }
}

bool Dialer::pause(Duration length) {
  const TimePoint until = std::min(deadline_, clock_.now() + length);
  while (left(until) > Duration::zero()) {
    if (is_cancelled()) {
      failure_ = {aborted(), true};
      return false;
    }
    ::poll(nullptr, 0, slice_ms(left(until)));
  }
  return true;
}

// The system's resolver cannot be interrupted, so it runs on a thread of its own, which is left to itself when the
// caller gives up first; what it still touches belongs to both.
bool Dialer::resolve_by_name() {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool ready = false;
    int error = 0;
    AddrInfo list;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread resolver([shared, where = where_] {
    int error = 0;
    AddrInfo list = look_up(where, AI_ADDRCONFIG, error);
    const std::lock_guard lock(shared->mutex);
    shared->error = error;
    shared->list = std::move(list);
    shared->ready = true;
    shared->changed.notify_all();
  });
  std::unique_lock lock(shared->mutex);
  while (!shared->ready) {
    if (is_cancelled() || left(deadline_) <= Duration::zero()) {
      lock.unlock();
      resolver.detach();  // lint: allow(detach) getaddrinfo cannot be interrupted; it touches shared state only
      if (left(deadline_) > Duration::zero()) {
        failure_ = {aborted(), true};
        return false;
      }
      return fail("the name '" + where_.host + "' was not resolved in time; fix: use an IP address or repair DNS");
    }
    shared->changed.wait_for(lock, std::chrono::milliseconds(slice_ms(left(deadline_))));
  }
  lock.unlock();
  resolver.join();
  addresses_ = std::move(shared->list);
  if (addresses_ == nullptr) {
    return fail("the name '" + where_.host + "' does not resolve (" + ::gai_strerror(shared->error) +
                "); fix: use an IP address, or repair DNS or /etc/hosts on this host");
  }
  return true;
}

bool Dialer::resolve() {
  int error = 0;
  addresses_ = look_up(where_, AI_NUMERICHOST, error);
  return addresses_ != nullptr || resolve_by_name();
}

bool Dialer::open(const addrinfo& address, TimePoint deadline) {
  dialed_.fd = UniqueFd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!dialed_.fd.is_open()) {
    return fail("cannot make a socket: " + errno_text(errno));
  }
  const int fd = dialed_.fd.get();
  set_control_options(fd, options_.silence_timeout);
  int error = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EINTR) {
    if (!wait(POLLOUT, deadline)) {
      return failure_.is_final ? false : fail("no answer: the host is down or a firewall drops the packets");
    }
    socklen_t size = sizeof(error);
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  dialed_.local = local_address_of(fd);
  // Connecting to an unused local port that the system also chose as our own succeeds: TCP connects us to ourselves.
  if (error == 0 && dialed_.local == remote_address_of(fd)) {
    error = ECONNREFUSED;
  }
  if (error == ECONNREFUSED) {
    return fail("connection refused: nothing listens there (not started yet, ended, or another address)");
  }
  if (error == ENETUNREACH || error == EHOSTUNREACH) {
    return fail(errno_text(error) + ": this host has no working network path to it");
  }
  return error == 0 || fail(errno_text(error));
}

bool Dialer::read_once(Handshake& handshake) {
  std::array<std::byte, Handshake::kMaxBytes> buffer;
  const ssize_t got = ::recv(dialed_.fd.get(), buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (got <= 0) {
    return fail("the connection was closed during the handshake (another service's port, or the job is ending)");
  }
  const ConstBytes received = ConstBytes(buffer).first(static_cast<std::size_t>(got));
  const auto used = handshake.feed(received);
  if (!used) {
    failure_ = {used.status().with_context("server " + server_), true};
    return false;
  }
  const ConstBytes rest = received.subspan(*used);
  dialed_.following.assign(rest.begin(), rest.end());
  return true;
}

bool Dialer::exchange(Handshake& handshake, TimePoint deadline) {
  while (true) {
    const auto output = handshake.take_output();
    std::size_t sent = 0;
    while (sent < output.size()) {
      if (!wait(POLLOUT, deadline)) {
        return false;
      }
      const ssize_t put = ::send(dialed_.fd.get(), output.data() + sent, output.size() - sent, MSG_NOSIGNAL);
      if (put < 0 && errno != EAGAIN && errno != EINTR) {
        return fail("the connection broke during the handshake: " + errno_text(errno));
      }
      sent += static_cast<std::size_t>(std::max<ssize_t>(put, 0));
    }
    if (handshake.done()) {
      return true;
    }
    if (!wait(POLLIN, deadline) || !read_once(handshake)) {
      return false;
    }
  }
}

bool Dialer::shake_hands(TimePoint deadline) {
  Handshake handshake = Handshake::initiator(options_.secret, options_.purpose, options_.hello);
  failure_ = {};
  if (exchange(handshake, deadline)) {
    return true;
  }
  if (failure_.status) {
    return fail("connected, but the peer did not answer the handshake (stopped, or not a Sirtaki server)");
  }
  return false;
}

bool Dialer::attempt(const addrinfo& address) {
  ++attempts_;
  failure_ = {};
  return open(address, std::min(deadline_, clock_.now() + kLongestAttempt)) &&
         shake_hands(std::min(deadline_, clock_.now() + std::min(options_.handshake_timeout, kLongestTimeout)));
}

// Somebody else may listen at one of several addresses: another host has it, too. Also at one of those that a name
// stands for, of which the whole round has been tried before the refusal counts.
bool Dialer::is_over() const {
  return failure_.is_final && (options_.or_else.empty() || failure_.status.code() == Code::kAborted);
}

Status Dialer::verdict() const {
  if (failure_.is_final) {
    return failure_.status;
  }
  return unavailable("cannot reach " + options_.who + " at " + server_ + " within " +
                     seconds_text(options_.connect_timeout) + " (" + std::to_string(attempts_) +
                     " attempts); last: " + std::string(failure_.status.text()) + "; fix: " + options_.fix);
}

Result<Dialed> Dialer::run() {
  if (!options_.secret.is_set()) {
    return invalid_argument("connecting needs the job's secret; none is set");
  }
  Duration rest = kFirstPause;
  std::size_t turn = 0;
  do {
    if (is_cancelled()) {
      return aborted();
    }
    server_ = turn == 0 ? options_.server : options_.or_else[turn - 1];
    turn = (turn + 1) % (options_.or_else.size() + 1);
    SRT_ASSIGN(where_, parse_host_port(server_));
    if (resolve()) {
      Failure refusal;
      for (const addrinfo* address = addresses_.get(); address != nullptr; address = address->ai_next) {
        if (attempt(*address)) {
          return std::move(dialed_);
        }
        dialed_ = {};
        if (failure_.is_final) {
          refusal = failure_;
        }
        if (failure_.status.code() == Code::kAborted) {
          break;
        }
      }
      if (refusal.is_final) {
        failure_ = refusal;
      }
    }
    if (is_over() || !pause(rest)) {
      return verdict();
    }
    rest = std::min(2 * rest, kLongestPause);
  } while (left(deadline_) > Duration::zero());
  return verdict();
}

}  // namespace

Result<Dialed> dial(const DialOptions& options, const Loop& clock, MoveFunction<bool()>& cancelled) {
  return Dialer(options, clock, cancelled).run();
}

}  // namespace sirtaki::rendezvous
