#include "runtime/net/device/nccl/communicator.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::net::nccl {
namespace {

// A longer call is logged, because it has blocked the loop for everyone.
constexpr Duration kSlowCall = std::chrono::milliseconds(10);
constexpr Duration kBetweenWarnings = std::chrono::seconds(60);

std::string milliseconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) + " ms";
}

Code code_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kInvalidArgument:
    case Outcome::kInvalidUsage:
      return Code::kInvalidArgument;
    case Outcome::kRemoteError:
      return Code::kPeerLost;
    default:
      return Code::kUnavailable;
  }
}

}  // namespace

Communicator::Communicator(Loop& loop, const Api& api, IdExchange& ids, Teardown& teardown, Logger& log,
                           CommunicatorOptions options)
    : loop_(loop), api_(api), ids_(ids), teardown_(teardown), log_(log), options_(std::move(options)) {}

Communicator::~Communicator() {
  drop();
}

void Communicator::reply(Done done, Status status) {
  loop_.post([moved = std::move(done), status = std::move(status)]() mutable { moved(status); });
}

void Communicator::start_step(State state, std::string name, Duration timeout, Done done) {
  state_ = state;
  step_text_ = std::move(name);
  done_ = std::move(done);
  begun_ = loop_.now();
  deadline_ = begun_ + timeout;
  slow_at_ = state == State::kExchanging ? begun_ + options_.slow_connect : TimePoint::max();
  pause_ = options_.first_poll;
  ++step_;
}

void Communicator::connect(Done done) {
  SRT_IN_LOOP(loop_);
  SRT_CHECK(state_ == State::kClosed);
  start_step(State::kExchanging, "exchange of its id", options_.connect_timeout, std::move(done));
  UniqueId own{};
  if (options_.rank == 0) {
    if (const Outcome outcome = api_.get_unique_id(&own); outcome != Outcome::kSuccess) {
      fail(error(outcome, "making an id"));
      return;
    }
  }
  timer_ = loop_.after(std::min(options_.connect_timeout, options_.slow_connect), [this] {
    timer_ = {};
    poll();
  });
  ids_.exchange(options_.name, options_.rank == 0 ? &own : nullptr,
                [weak = std::weak_ptr(self_), step = step_](Result<UniqueId> id) {
                  const auto self = weak.lock();
                  if (self && (*self)->step_ == step && (*self)->state_ == State::kExchanging) {
                    (*self)->got_id(std::move(id));
                  }
                });
}

void Communicator::got_id(Result<UniqueId> id) {
  stop_timer();
  if (!id) {
    fail(id.status().with_context("communicator '" + options_.name + "': exchange of its id"));
    return;
  }
  Config config;
  config.blocking = 0;
  if (options_.max_ctas > 0) {
    config.max_ctas = options_.max_ctas;
  }
  state_ = State::kConnecting;
  step_text_ = "connecting";
  slot_ = std::make_shared<CommHandle>(nullptr);
  const Outcome outcome = api_.comm_init_rank_config(slot_.get(), options_.size, *id, options_.rank, &config);
  comm_ = std::atomic_ref(*slot_).load(std::memory_order_acquire);
  if (is_error(outcome)) {
    fail(error(outcome, step_text_));
    return;
  }
  poll();
}

void Communicator::launch(std::vector<Call> group, Done done) {
  SRT_IN_LOOP(loop_);
  SRT_CHECK(ready() && !group.empty());
  start_step(State::kLaunching, "launching", options_.call_timeout, std::move(done));
  const TimePoint begin = loop_.now();
  // Even a single call is a group: without one, some versions report a send as launched before it is.
  Outcome worst = api_.group_start();
  if (worst == Outcome::kSuccess) {
    for (Call& call : group) {
      worst = call(api_, comm_);
      if (is_error(worst)) {
        break;
      }
    }
    const Outcome ended = api_.group_end();
    worst = is_error(worst) ? worst : ended;
  }
  if (const Duration took = loop_.now() - begin; took > kSlowCall) {
    log_.write_limited(LogLevel::kWarn, "nccl-slow-" + options_.name, kBetweenWarnings,
                       "communicator '" + options_.name + "': NCCL took " + milliseconds(took) + " to queue a group");
  }
  if (is_error(worst)) {
    refuse(worst, group.size() == 1);
  } else {
    poll();
  }
}

// NCCL has launched nothing. If it found a bad argument before it touched the communicator, that stays usable; its
// asynchronous error tells.
void Communicator::refuse(Outcome outcome, bool alone) {
  const Status status = error(outcome, step_text_);
  if (outcome == Outcome::kInvalidArgument && alone && async_error() == Outcome::kSuccess) {
    state_ = State::kReady;
    reply(std::move(done_), status);
    return;
  }
  fail(status);
}

Outcome Communicator::async_error() const {
  Outcome found = Outcome::kSuccess;
  const Outcome asked = api_.comm_get_async_error(comm_, &found);
  return asked == Outcome::kSuccess ? found : asked;
}

// Polls after a successful call, too: the result of a call does not always agree with the state of the communicator.
void Communicator::poll() {
  const Outcome found = comm_ == nullptr ? Outcome::kInProgress : async_error();
  if (found == Outcome::kSuccess) {
    finish_step();
  } else if (found != Outcome::kInProgress) {
    fail(error(found, step_text_));
  } else if (loop_.now() >= deadline_) {
    fail({Code::kTimeout,
          step_name() + " is not done in " + milliseconds(deadline_ - begun_) + ". Likely cause: " + likely_cause()});
  } else {
    warn_if_slow();
    poll_again();
  }
}

std::string Communicator::step_name() const {
  return "communicator '" + options_.name + "' of rank " + std::to_string(options_.job_rank) + ": " + step_text_;
}

std::string Communicator::likely_cause() const {
  switch (state_) {
    case State::kExchanging:
      return "the first of its ranks is stopped, or waits inside NCCL for its network; look at that rank first "
             "(NCCL_SOCKET_IFNAME selects the interface)";
    case State::kConnecting:
      return "NCCL uses a network interface over which ranks cannot reach each other, such as one of a container; set "
             "NCCL_SOCKET_IFNAME to the one of net.interface on all ranks. Or a firewall blocks its ports, or a rank "
             "is stopped. NCCL_DEBUG=INFO logs the addresses that it tries; device.data = \"host\" avoids NCCL";
    default:
      return "a rank is missing or stopped, or its network is blocked (NCCL_DEBUG=INFO logs more)";
  }
}

void Communicator::warn_if_slow() {
  if (loop_.now() >= slow_at_) {
    slow_at_ = TimePoint::max();
    log_.warn(step_name() + " has taken " + milliseconds(loop_.now() - begun_) + " so far, and is given up after " +
              milliseconds(deadline_ - begun_) + ". Likely cause: " + likely_cause());
  }
}

void Communicator::poll_again() {
  // The id arrives as a callback, so there is nothing to poll for.
  const Duration left = deadline_ - loop_.now();
  const Duration pause = state_ == State::kExchanging ? left : std::min(pause_, left);
  pause_ = std::min(2 * pause_, options_.last_poll);
  timer_ = loop_.after(pause, [this] {
    timer_ = {};
    poll();
  });
}

void Communicator::stop_timer() {
  loop_.cancel(timer_);
  timer_ = {};
}

void Communicator::finish_step() {
  if (state_ == State::kClosing) {
    teardown_.start(api_.comm_destroy, std::exchange(comm_, nullptr), std::move(slot_));
    state_ = State::kClosed;
  } else {
    if (state_ == State::kConnecting && slow_at_ == TimePoint::max()) {
      log_.warn("communicator '" + options_.name + "' is connected after " + milliseconds(loop_.now() - begun_));
    }
    state_ = State::kReady;
  }
  reply(std::move(done_), {});
}

Status Communicator::check() const {
  SRT_IN_LOOP(loop_);
  if (state_ != State::kReady) {
    return cause_;
  }
  const Outcome found = async_error();
  return is_error(found) ? error(found, "work on the device") : Status();
}

void Communicator::abort(Status cause) {
  SRT_IN_LOOP(loop_);
  if (state_ != State::kAborted) {
    fail(std::move(cause));
  }
}

void Communicator::fail(Status cause) {
  cause_ = std::move(cause);
  log_.warn("communicator '" + options_.name + "' is aborted: " + cause_.to_string());
  drop();
  state_ = State::kAborted;
  if (done_) {
    reply(std::move(done_), cause_);
    done_ = {};
  }
}

void Communicator::drop() {
  stop_timer();
  ++step_;
  if (const CommHandle comm = std::exchange(comm_, nullptr)) {
    teardown_.start(api_.comm_abort, comm, std::move(slot_));
  }
}

void Communicator::close(Done done) {
  SRT_IN_LOOP(loop_);
  if (!ready()) {
    if (state_ != State::kClosed) {
      abort({Code::kShutdown, "communicator '" + options_.name + "' was closed"});
    }
    reply(std::move(done), {});
    return;
  }
  start_step(State::kClosing, "closing", options_.call_timeout, std::move(done));
  const Outcome outcome = api_.comm_finalize(comm_);
  if (is_error(outcome)) {
    fail(error(outcome, step_text_));
  } else {
    poll();
  }
}

Status Communicator::error(Outcome outcome, const std::string& step) const {
  std::string text = "communicator '" + options_.name + "' of rank " + std::to_string(options_.job_rank) + ": " + step +
                     ": NCCL reports " + api_.get_error_string(outcome);
  if (const char* const last = comm_ == nullptr ? nullptr : api_.get_last_error(comm_); last != nullptr && *last != 0) {
    text += ", " + std::string(last);
  }
  return {code_of(outcome), text + " (NCCL_DEBUG=WARN logs more)"};
}

}  // namespace sirtaki::net::nccl
