#include "runtime/rendezvous/client.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "runtime/base/check.h"
#include "runtime/base/wire.h"
#include "runtime/rendezvous/link/asio_context.h"
#include "runtime/rendezvous/link/dial.h"
#include "runtime/rendezvous/link/link.h"

namespace sirtaki::rendezvous {

namespace asio = boost::asio;

namespace {

// Result for a blocked caller, set by the loop.
struct Outcome {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<Seat>> joined;
  bool over = false;  // the connection is closed or has ended

  void begin() {
    const std::lock_guard lock(mutex);
    joined.reset();
  }
  void set_joined(Result<Seat> result) {
    const std::lock_guard lock(mutex);
    if (!joined) {
      joined.emplace(std::move(result));
      changed.notify_all();
    }
  }
  void set_over() {
    const std::lock_guard lock(mutex);
    over = true;
    changed.notify_all();
  }
};

}  // namespace

class Client::Core final : public LinkHandler, public std::enable_shared_from_this<Core> {
 public:
  Core(AsioLoop& loop, const ClientOptions& options, ClientHandler& handler)
      : loop_(loop),
        server_(options.server),
        interval_(options.heartbeat_interval),
        timeout_(options.heartbeat_timeout),
        handler_(handler) {}

  Status start(Dialed dialed);
  void join(const JoinRequest& request);
  void send(FrameType type, ConstBytes message);
  void end_epoch();
  void leave();
  void close();

  void on_frame(const Frame& frame) override;
  void on_end(const Status& cause) override;

  Outcome outcome;

 private:
  enum class State { kOpen, kJoining, kMember, kLeaving, kOver };

  Result<Seat> seat_of(Result<Membership> membership) const;
  void on_joined(Result<Seat> seat);
  void on_rejected(ConstBytes payload);
  void on_ping(ConstBytes payload);
  void on_lost(ConstBytes payload);
  void on_left(ConstBytes payload);
  void arm_watch(TimePoint due);
  void on_watch();
  void end(const Status& cause);
  void broke_protocol() { end(corrupt("the server at " + server_ + " sent something that cannot be right")); }

  AsioLoop& loop_;
  const std::string server_;
  const Duration interval_;
  const Duration timeout_;
  ClientHandler& handler_;
  std::shared_ptr<Link> link_;
  State state_ = State::kOpen;
  Rank rank_ = -1;
  Status cause_;  // reason for the end of the connection
  TimerId watch_;
  TimePoint watch_due_;
  TimePoint awake_since_;
};

Status Client::Core::start(Dialed dialed) {
  asio::ip::tcp::socket socket(io_context_of(loop_));
  boost::system::error_code error;
  const bool v6 = dialed.local.family() == AF_INET6;
  socket.assign(v6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), dialed.fd.get(), error);
  if (error) {
    return unavailable("cannot watch the connection to " + server_ + ": " + error.message());
  }
  dialed.fd.release();
  link_ = std::make_shared<Link>(loop_, std::move(socket), *this);
  arm_watch(loop_.now() + timeout_);
  const auto self = shared_from_this();
  link_->start(dialed.following);
  return {};
}

void Client::Core::arm_watch(TimePoint due) {
  watch_due_ = due;
  watch_ = loop_.after(due - loop_.now(), [this] { on_watch(); });
}

// Runs when the silence would be too long if no byte had come since it was armed; re-arms if one has come.
void Client::Core::on_watch() {
  const TimePoint now = loop_.now();
  if (now - watch_due_ > interval_) {
    awake_since_ = now;  // this process was stopped: bytes received meanwhile may be unread
  }
  const TimePoint due = std::max(link_->last_received(), awake_since_) + timeout_;
  if (due > now) {
    return arm_watch(due);
  }
  end({Code::kPeerLost, "the server at " + server_ + " has been silent for " +
                            seconds_text(now - link_->last_received()) +
                            " (its process is stopped, or its host is unreachable)"});
}

void Client::Core::join(const JoinRequest& request) {
  outcome.begin();
  if (state_ == State::kOpen || state_ == State::kMember) {
    state_ = State::kJoining;
    rank_ = rank_ < 0 ? request.rank : rank_;
    link_->send(FrameType::kJoin, encode(request));
  } else if (state_ == State::kOver) {
    outcome.set_joined(cause_.ok() ? Status(Code::kShutdown, "the connection is closed") : cause_);
  }
}

void Client::Core::send(FrameType type, ConstBytes message) {
  if (state_ == State::kMember) {
    link_->send(type, message);
  }
}

void Client::Core::end_epoch() {
  state_ = state_ == State::kMember ? State::kOpen : state_;
}

void Client::Core::leave() {
  if (state_ == State::kOpen || state_ == State::kJoining || state_ == State::kMember) {
    state_ = State::kLeaving;
    link_->send(FrameType::kLeave, {});
  }
}

void Client::Core::close() {
  state_ = State::kOver;
  loop_.cancel(watch_);
  if (link_ != nullptr) {
    link_->close();
  }
  outcome.set_over();
}

void Client::Core::on_frame(const Frame& frame) {
  const auto self = shared_from_this();
  const bool member = state_ == State::kMember;
  switch (frame.type) {
    case FrameType::kPing:
      return on_ping(frame.payload);
    case FrameType::kJoined:
      return on_joined(seat_of(decode_membership(frame.payload)));
    case FrameType::kSeat:
      return on_joined(decode_seat(frame.payload));
    case FrameType::kRejected:
      return on_rejected(frame.payload);
    case FrameType::kLeaveOk:
      return close();
    case FrameType::kLost:
      return on_lost(frame.payload);
    case FrameType::kLeft:
      return on_left(frame.payload);
    case FrameType::kMessage:
      if (member) {
        handler_.on_message(frame.payload);
      }
      return;
    case FrameType::kTree:
      if (member) {
        handler_.on_tree(frame.payload);
      }
      return;
    case FrameType::kNotice:
      if (member) {
        handler_.on_notice(frame.payload);
      }
      return;
    case FrameType::kJoin:
    case FrameType::kLeave:
    case FrameType::kPong:
      return broke_protocol();
  }
}

void Client::Core::on_ping(ConstBytes payload) {
  WireReader in(payload);
  const auto theirs = in.get<std::int64_t>();
  if (!in.finish("a heartbeat").ok()) {
    return broke_protocol();
  }
  const std::int64_t pong[] = {theirs, loop_.now().time_since_epoch().count()};
  link_->send(FrameType::kPong, std::as_bytes(std::span(pong)));
}

// Ranks of a job that is not elastic keep the rank of their request.
Result<Seat> Client::Core::seat_of(Result<Membership> membership) const {
  SRT_TRY(membership.status());
  return Seat{rank_, {}, *std::move(membership)};
}

void Client::Core::on_joined(Result<Seat> seat) {
  if (state_ == State::kLeaving) {
    return;  // leave() was called before the answer of the server
  }
  if (state_ != State::kJoining || !seat || seat->rank >= seat->membership.size()) {
    return broke_protocol();
  }
  state_ = State::kMember;
  rank_ = seat->rank;
  outcome.set_joined(std::move(seat));
}

void Client::Core::on_rejected(ConstBytes payload) {
  WireReader in(payload);
  Status why = get_status(in);
  if (!in.finish("a rejection").ok() || why.ok()) {
    return broke_protocol();
  }
  end(why);
}

void Client::Core::on_lost(ConstBytes payload) {
  const auto lost = decode_lost(payload);
  if (!lost || lost->status.ok()) {
    return broke_protocol();
  }
  if (lost->rank == rank_) {
    return end(lost->status.with_context("the server gave this rank up"));
  }
  if (state_ == State::kMember) {
    handler_.on_lost(lost->rank, lost->status);
  }
}

void Client::Core::on_left(ConstBytes payload) {
  const auto ranks = decode_left(payload);
  if (!ranks) {
    return broke_protocol();
  }
  for (const Rank rank : *ranks) {
    if (state_ == State::kMember && rank != rank_) {
      handler_.on_left(rank);
    }
  }
}

void Client::Core::on_end(const Status& cause) {
  end({cause.code(), "the server at " + server_ + " is gone: " + std::string(cause.text()) +
                         "; the launcher, or rank 0 if it runs the server, has ended; its output may say why"});
}

void Client::Core::end(const Status& cause) {
  const State before = state_;
  if (before == State::kOver) {
    return;
  }
  close();
  cause_ = cause;
  outcome.set_joined(cause);
  if (before == State::kMember) {
    handler_.on_disconnected(cause);
  }
}

Client::Client(AsioLoop& loop, ClientOptions options, std::shared_ptr<Core> core, MoveFunction<bool()> cancelled)
    : loop_(loop), options_(std::move(options)), core_(std::move(core)), cancelled_(std::move(cancelled)) {}

Client::~Client() {
  close();
}

Status Client::start(Dialed dialed) {
  local_address_ = dialed.local.host();
  Status status(Code::kShutdown, "the loop has been stopped");
  loop_.run_sync([&] { status = core_->start(std::move(dialed)); });
  return status;
}

void Client::end_epoch() {
  core_->end_epoch();
}

void Client::close() {
  if (!loop_.run_sync([this] { core_->close(); })) {
    core_->close();  // the loop has stopped, so its state belongs to this thread
  }
}

Result<Seat> Client::wait_for_join() {
  Outcome& outcome = core_->outcome;
  const TimePoint deadline = loop_.now() + std::min(options_.join_timeout, kLongestTimeout);
  std::unique_lock lock(outcome.mutex);
  while (!outcome.joined) {
    if (loop_.now() >= deadline) {
      return Status(Code::kTimeout, "the server at " + options_.server + " did not complete the job's start within " +
                                        seconds_text(options_.join_timeout) + "; fix: see which ranks have started");
    }
    lock.unlock();
    const bool cancelled = cancelled_ && cancelled_();
    lock.lock();
    if (cancelled) {
      return Status(Code::kAborted, "joining was cancelled");
    }
    outcome.changed.wait_until(lock, std::min(deadline, loop_.now() + kCancelSlice),
                               [&] { return outcome.joined.has_value(); });
  }
  return *outcome.joined;
}

Result<Membership> Client::join(const JoinRequest& request) {
  SRT_CHECK(!loop_.in_loop());
  if (!loop_.run_sync([&] { core_->join(request); })) {
    return Status(Code::kShutdown, "the loop has been stopped");
  }
  Result<Seat> result = wait_for_join();
  if (!result) {
    if (result.status().code() == Code::kAborted || result.status().code() == Code::kTimeout) {
      leave(kCancelSlice);
    }
    close();
    return result.status();
  }
  rank_ = result->rank;
  notice_ = std::move(result->notice);
  return std::move(result->membership);
}

void Client::send(FrameType type, std::vector<std::byte> message) {
  SRT_CHECK(message.size() <= frame_cap(static_cast<std::uint8_t>(type)).value());
  sent_.fetch_add(1, std::memory_order_relaxed);
  loop_.post([core = core_, type, message = std::move(message)] { core->send(type, message); });
}

void Client::leave(Duration grace) {
  // run_sync() returns after any callback that was running, and core_->leave() prevents later ones.
  loop_.run_sync([this] { core_->leave(); });
  Outcome& outcome = core_->outcome;
  {
    std::unique_lock lock(outcome.mutex);
    outcome.changed.wait_for(lock, std::min(grace, kLongestTimeout), [&] { return outcome.over; });
  }
  close();
}

Result<std::unique_ptr<Client>> Client::connect(AsioLoop& loop, ClientOptions options, ClientHandler& handler,
                                                MoveFunction<bool()> cancelled) {
  DialOptions dialing;
  dialing.addresses = {options.server};
  options.heartbeat_timeout = std::min(options.heartbeat_timeout, kLongestTimeout);
  dialing.secret = options.secret;
  dialing.connect_timeout = options.connect_timeout;
  dialing.handshake_timeout = options.handshake_timeout;
  dialing.silence_timeout = options.heartbeat_timeout;
  SRT_ASSIGN(Dialed dialed, dial(loop, dialing, cancelled));
  auto core = std::make_shared<Core>(loop, options, handler);
  std::unique_ptr<Client> client(new Client(loop, std::move(options), std::move(core), std::move(cancelled)));
  SRT_TRY(client->start(std::move(dialed)));
  return client;
}

}  // namespace sirtaki::rendezvous
