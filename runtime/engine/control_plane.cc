#include "runtime/engine/control_plane.h"

#include <atomic>
#include <utility>
#include <vector>

#include "runtime/base/trace_writer.h"
#include "runtime/control/coordinator.h"
#include "runtime/rendezvous/client.h"

namespace sirtaki::engine {
namespace {

// Size 1: agreements with oneself, on the same loop, and the trace file.
class SinglePlane final : public ControlPlane {
 public:
  explicit SinglePlane(rendezvous::AsioLoop& loop) : loop_(loop), coordinator_(1, {}) {}

  std::string local_address() const override { return "127.0.0.1"; }
  Result<rendezvous::Membership> join(const rendezvous::JoinRequest& request) override {
    rendezvous::Membership membership;
    membership.epoch = Epoch(1);
    membership.members.push_back({0, request.hostname, request.host_id, request.pid, {}});
    return membership;
  }
  void begin(ControlEvents events) override { events_ = std::move(events); }
  void leave() override {}
  std::uint64_t messages_sent() const override { return 0; }
  std::uint64_t wakeups() const override { return 0; }

  void send(control::MemberMessage message) override {
    if (const auto* chunk = std::get_if<control::TraceChunk>(&message)) {
      write_trace(*chunk);
      return;
    }
    if (const auto* request = std::get_if<control::TraceRequest>(&message)) {
      if (request->start) {
        auto writer = TraceWriter::open(request->path);
        warn("no trace is written: ", writer.status());
        trace_ = writer ? std::move(*writer) : nullptr;
      }
      answer(control::TraceSwitch{request->start && trace_ != nullptr});
      return;
    }
    coordinator_.on_message(0, message, loop_.now());
    for (const auto& action : coordinator_.take_actions().sends) {
      answer(action.message);
    }
  }

 private:
  void answer(const control::CoordinatorMessage& message) {
    loop_.post([this, bytes = control::encode(message)] { events_.message(bytes); });
  }
  void warn(const std::string& what, const Status& status) {
    if (!status) {
      loop_.post([this, text = what + status.to_string()] { events_.warning(text); });
    }
  }
  void write_trace(const control::TraceChunk& chunk) {
    if (trace_ && !chunk.records.empty()) {
      const auto decoded = decode_timeline_chunk(chunk.records);
      const Status status = decoded ? trace_->add(*decoded, Duration(0)) : decoded.status();
      warn("the trace is incomplete: ", status);
      if (!status) {
        trace_.reset();
      }
    }
    if (chunk.last) {
      trace_.reset();
    }
  }

  rendezvous::AsioLoop& loop_;
  control::Coordinator coordinator_;
  ControlEvents events_;
  std::unique_ptr<TraceWriter> trace_;
};

class ClientPlane final : public ControlPlane, private rendezvous::ClientHandler {
 public:
  explicit ClientPlane(rendezvous::AsioLoop& loop) : loop_(loop) {}

  Status open(const Config& config, const std::string& server, const rendezvous::Secret& secret,
              const std::function<bool()>& interrupted) {
    rendezvous::ClientOptions options;
    options.server = server;
    options.secret = secret;
    options.connect_timeout = config.control.connect_timeout;
    options.join_timeout = config.control.join_timeout + config.control.connect_timeout;
    options.heartbeat_interval = config.control.heartbeat_interval;
    options.heartbeat_timeout = config.control.heartbeat_timeout;
    grace_ = config.control.shutdown_grace;
    auto client = rendezvous::Client::connect(control_loop_, std::move(options), *this,
                                              interrupted ? MoveFunction<bool()>(interrupted) : MoveFunction<bool()>());
    if (!client) {
      return client.status();
    }
    client_ = std::move(*client);
    return {};
  }

  std::string local_address() const override { return client_->local_address(); }
  Result<rendezvous::Membership> join(const rendezvous::JoinRequest& request) override {
    return client_->join(request);
  }
  void begin(ControlEvents events) override {
    events_ = std::move(events);
    for (Task& task : std::exchange(early_, {})) {
      task();
    }
  }
  void leave() override { client_->leave(grace_); }
  void send(control::MemberMessage message) override { client_->send(control::encode(message)); }
  std::uint64_t messages_sent() const override { return client_->messages_sent(); }
  std::uint64_t wakeups() const override { return control_loop_.wakeups(); }

 private:
  // On the control thread; each goes to the engine's loop, in order.
  void on_message(ConstBytes message) override {
    deliver([this, bytes = std::vector<std::byte>(message.begin(), message.end())] { events_.message(bytes); });
  }
  void on_lost(Rank rank, const Status& cause) override {
    deliver([this, rank, cause] { events_.lost(rank, cause); });
  }
  void on_left(Rank rank) override {
    deliver([this, rank] { events_.left(rank); });
  }
  void on_disconnected(const Status& cause) override {
    deliver([this, cause] { events_.disconnected(cause); });
  }
  void deliver(Task task) {
    loop_.post([this, task = std::move(task)]() mutable {
      if (events_.message) {
        task();
      } else {
        early_.push_back(std::move(task));
      }
    });
  }

  rendezvous::AsioLoop& loop_;
  Duration grace_{};
  ControlEvents events_;     // on the engine's loop, as early_
  std::vector<Task> early_;  // came before begin()
  rendezvous::AsioLoop control_loop_{"srt-control"};
  std::unique_ptr<rendezvous::Client> client_;
};

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::single(rendezvous::AsioLoop& loop) {
  return std::make_unique<SinglePlane>(loop);
}

Result<std::unique_ptr<ControlPlane>> ControlPlane::connect(rendezvous::AsioLoop& loop, const Config& config,
                                                            const std::string& server, const rendezvous::Secret& secret,
                                                            const std::function<bool()>& interrupted) {
  auto plane = std::make_unique<ClientPlane>(loop);
  SRT_TRY(plane->open(config, server, secret, interrupted));
  return std::unique_ptr<ControlPlane>(std::move(plane));
}

}  // namespace sirtaki::engine
