#include "runtime/engine/epoch/control_plane.h"

#include <atomic>
#include <future>
#include <utility>
#include <vector>

#include "runtime/base/telemetry/trace_writer.h"
#include "runtime/control/coordinator.h"
#include "runtime/engine/epoch/tree_node.h"
#include "runtime/rendezvous/client.h"

namespace sirtaki::engine {
namespace {

// The control plane of a job of one rank: a coordinator on the same loop, and the trace file.
class SingleControlPlane final : public ControlPlane {
 public:
  explicit SingleControlPlane(rendezvous::AsioLoop& loop) : loop_(loop), coordinator_(1, {}) {}

  std::string local_address() const override { return "127.0.0.1"; }
  Result<rendezvous::Membership> join(const rendezvous::JoinRequest& request) override {
    rendezvous::Membership membership;
    membership.epoch = Epoch(1);
    membership.members.push_back({0, request.hostname, request.host_id, request.pid, {}, {}});
    return membership;
  }
  void watch(std::function<void(const Status&)> /*broken*/) override {}
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
    if (!status.ok()) {
      loop_.post([this, text = what + status.to_string()] { events_.warning(text); });
    }
  }
  void write_trace(const control::TraceChunk& chunk) {
    if (trace_ && !chunk.records.empty()) {
      const auto decoded = decode_timeline_chunk(chunk.records);
      const Status status = decoded ? trace_->add(*decoded, Duration(0)) : decoded.status();
      warn("the trace is incomplete: ", status);
      if (!status.ok()) {
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

// Returns the address at which relays listen: the data address if this rank publishes only one, else any address.
std::string bind_address_for(const std::vector<std::string>& endpoints) {
  if (endpoints.size() != 1) {
    return "::";
  }
  const std::string host = endpoints.front().substr(0, endpoints.front().rfind(':'));
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

class ClientPlane final : public ControlPlane, private rendezvous::ClientHandler {
 public:
  ClientPlane(rendezvous::AsioLoop& loop, const Config& config, std::shared_ptr<ControlLine> line,
              std::function<bool()> interrupted)
      : loop_(loop),
        interrupted_(std::move(interrupted)),
        options_(line->options()),
        grace_(config.control.shutdown_grace),
        ports_(config.job.port_range),
        line_(std::move(line)) {
    if (config.elastic.min > 0) {
      cause_grace_ = heartbeats_of(config).timeout + kWordGrace;
    }
    line_->attach(this);
  }
  ~ClientPlane() override {
    line_->detach(this);
    line_->loop().run_sync([this] { tree_.reset(); });
  }

  std::string local_address() const override { return line_->client().local_address(); }
  Result<rendezvous::Membership> join(const rendezvous::JoinRequest& request) override {
    SRT_TRY(open_tree(request));
    if (!tree_) {
      return line_->join(request);
    }
    rendezvous::JoinRequest with_relays = request;
    with_relays.relay_endpoints = tree_->endpoints(request.data_endpoints);
    SRT_ASSIGN(rendezvous::Membership membership, line_->join(with_relays));
    const Status connected = tree_->connect(membership, [this] { return broken_ || (interrupted_ && interrupted_()); });
    if (!connected.ok()) {
      Status verdict;
      loop_.run_sync([&] { verdict = verdict_; });
      return verdict.ok() ? connected : verdict;
    }
    return membership;
  }
  void watch(std::function<void(const Status&)> broken) override {
    on_broken_ = std::move(broken);
    if (!verdict_.ok()) {
      on_broken_(verdict_);
    }
  }
  void begin(ControlEvents events) override {
    events_ = std::move(events);
    begun_ = true;
    for (Task& task : std::exchange(early_, {})) {
      task();
    }
  }
  Rank rank() const override { return line_->client().rank(); }
  Unable unable() const override { return line_->unable(); }
  void set_cause(const Status& why) override { line_->freeze({}, why); }
  void set_unreachable(const std::vector<Rank>& ranks) override { line_->set_unreachable(ranks); }
  Duration cause_grace() const override { return cause_grace_; }
  std::shared_ptr<ControlLine> detach() override {
    line_->detach(this);
    loop_.run_sync([this] { left_ = detached_ = true; });
    line_->loop().run_sync([this] { tree_.reset(); });
    return line_;
  }
  void leave() override {
    if (tree_) {
      leave_tree();
    } else {
      line_->client().leave(grace_);
    }
  }
  void relay_on() override {
    if (tree_ && tree_left_.valid()) {
      tree_left_.wait_for(grace_ + std::chrono::seconds(1));
      line_->client().leave(grace_);
      line_->loop().run_sync([this] { tree_->close(); });
    }
  }
  void send(control::MemberMessage message) override {
    if (detached_) {
      return;
    }
    if (!tree_ || std::holds_alternative<control::TraceChunk>(message) ||
        std::holds_alternative<control::TraceRequest>(message) || std::holds_alternative<control::JobBroken>(message)) {
      line_->client().send(control::encode(message));
      return;
    }
    // Messages of one turn of the loop share a bundle, so that each relay handles them at once.
    if (outbox_.empty()) {
      loop_.post([this] { empty_outbox(); });
    }
    outbox_.push_back({own_rank_, std::move(message)});
  }
  std::uint64_t messages_sent() const override {
    return line_->client().messages_sent() + (tree_ ? tree_->messages_sent() : 0);
  }
  std::uint64_t wakeups() const override { return line_->loop().wakeups(); }

 private:
  // ---- the tree of relays; null in jobs without one ----

  Status open_tree(const rendezvous::JoinRequest& request) {
    TreeOptions options;
    options.rank = request.rank;
    options.size = request.size;
    options.fanout = request.fanout;
    options.port.bind_address = bind_address_for(request.data_endpoints);
    options.port.port_first = ports_.first;
    options.port.port_last = ports_.last;
    options.port.secret = options_.secret;
    options.port.handshake_timeout = options_.handshake_timeout;
    options.port.silence_timeout = options_.heartbeat_timeout;
    options.connect_timeout = options_.connect_timeout;
    options.verdict_timeout = options_.heartbeat_timeout;
    TreeEvents events;
    events.told = [this](ConstBytes bytes) { on_message(bytes); };
    events.to_hub = [this](std::vector<std::byte> bytes) { line_->client().send_tree(std::move(bytes)); };
    events.plain = [this](const control::MemberMessage& message) { line_->client().send(control::encode(message)); };
    events.cut = [this](const Status& cause, bool needed) {
      deliver([this, cause, needed] { events_.cut(cause, needed); });
    };
    events.left = [this](Rank rank) { tell_left(rank); };
    events.warning = [this](const std::string& line) { deliver([this, line] { events_.warning(line); }); };
    own_rank_ = control::RankSet::of(request.rank);
    SRT_ASSIGN(tree_, TreeNode::open(line_->loop(), std::move(options), std::move(events)));
    return {};
  }

  void empty_outbox() {
    if (!outbox_.empty()) {
      line_->loop().post([this, bundle = std::exchange(outbox_, {})] { tree_->say(bundle); });
    }
  }

  // Starts to leave the tree. Other ranks may need the relays of this rank and its connection to the coordinator for
  // some time; relay_on() waits for them.
  void leave_tree() {
    loop_.run_sync([this] {
      empty_outbox();
      left_ = true;
    });
    const auto promise = std::make_shared<std::promise<void>>();
    tree_left_ = promise->get_future();
    line_->loop().run_sync([&] { tree_->leave(grace_, [promise] { promise->set_value(); }); });
  }

  // ---- events on the control thread, each posted to the loop of the engine in order ----

  void on_message(ConstBytes message) override {
    if (!begun_) {
      const auto decoded = control::decode_coordinator_message(message);
      const auto* failed = decoded ? std::get_if<control::JobFailed>(&*decoded) : nullptr;
      if (failed != nullptr) {
        break_start(failed->status);
      }
    }
    deliver([this, bytes = std::vector<std::byte>(message.begin(), message.end())] { events_.message(bytes); });
  }
  void on_tree(ConstBytes message) override {
    if (tree_) {
      tree_->on_spread(message);
    }
  }
  // Ends a start in progress: connections to lost ranks would only run into their timeout.
  void break_start(const Status& cause) {
    loop_.post([this, cause] {
      verdict_.update(cause);
      if (!begun_ && !left_ && on_broken_) {
        on_broken_(verdict_);
      }
    });
    broken_ = true;
  }
  void on_lost(Rank rank, const Status& cause) override {
    break_start(cause);
    deliver([this, rank, cause] { events_.lost(rank, cause); });
    if (tree_) {
      tree_->abandon();
    }
  }
  void on_left(Rank rank) override {
    if (tree_) {
      tree_->on_left(rank);  // TreeNode reports it behind agreements that are still in the tree
    } else {
      tell_left(rank);
    }
  }
  void tell_left(Rank rank) {
    deliver([this, rank] { events_.left(rank); });
  }
  void on_disconnected(const Status& cause) override {
    break_start(cause);
    deliver([this, cause] { events_.disconnected(cause); });
    if (tree_) {
      tree_->abandon();
    }
  }
  void deliver(Task task) {
    loop_.post([this, task = std::move(task)]() mutable {
      if (left_) {
        return;
      }
      if (events_.message) {
        task();
      } else {
        early_.push_back(std::move(task));
      }
    });
  }

  rendezvous::AsioLoop& loop_;
  const std::function<bool()> interrupted_;
  const rendezvous::ClientOptions options_;
  const Duration grace_;
  const PortRange ports_;
  Duration cause_grace_ = kCauseGrace;
  ControlEvents events_;     // used on the loop of the engine, like early_, outbox_, left_, detached_
  std::vector<Task> early_;  // events before begin()
  control::Bundle outbox_;
  bool left_ = false;
  bool detached_ = false;
  Status verdict_;                                // first event that ended the job; used on the loop of the engine
  std::function<void(const Status&)> on_broken_;  // used on the loop of the engine
  std::atomic<bool> broken_{false};               // verdict_ is set or about to be
  std::atomic<bool> begun_{false};
  control::RankSet own_rank_;
  const std::shared_ptr<ControlLine> line_;
  std::future<void> tree_left_;
  std::unique_ptr<TreeNode> tree_;  // used on the control loop
};

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::single(rendezvous::AsioLoop& loop) {
  return std::make_unique<SingleControlPlane>(loop);
}

Result<std::unique_ptr<ControlPlane>> ControlPlane::connect(rendezvous::AsioLoop& loop, const Config& config,
                                                            const std::string& server, const rendezvous::Secret& secret,
                                                            const std::function<bool()>& interrupted) {
  SRT_ASSIGN(std::shared_ptr<ControlLine> line, ControlLine::connect(config, server, secret, interrupted));
  return over(loop, config, std::move(line), interrupted);
}

std::unique_ptr<ControlPlane> ControlPlane::over(rendezvous::AsioLoop& loop, const Config& config,
                                                 std::shared_ptr<ControlLine> line,
                                                 const std::function<bool()>& interrupted) {
  return std::make_unique<ClientPlane>(loop, config, std::move(line), interrupted);
}

}  // namespace sirtaki::engine
