#include "tests/world/sim_world.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "runtime/control/coordinator.h"
#include "runtime/net/direct.h"
#include "runtime/net/local_link.h"

namespace sirtaki::world {
namespace {

constexpr Duration kGoodBye = std::chrono::milliseconds(100);
constexpr Duration kWaitNotice = std::chrono::milliseconds(250);  // as Session: a wait this long is reported

}  // namespace

struct SimWorld::Impl {
  class Node;

  class Lines final : public LogSink {
   public:
    explicit Lines(std::vector<std::string>& lines) : lines_(lines) {}
    void write(LogLevel /*level*/, std::string_view line) override { lines_.emplace_back(line); }

   private:
    std::vector<std::string>& lines_;
  };

  explicit Impl(SimOptions opts) : options(std::move(opts)), clock(options.seed) {}

  Duration draw_delay(std::size_t bytes) {
    const auto most = static_cast<std::uint64_t>(options.max_delay.count());
    const auto wire = static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / options.bytes_per_second);
    return Duration(static_cast<std::int64_t>(clock.random()() % (most + 1)) + wire);
  }

  void to_coordinator(Rank from, std::vector<std::byte> bytes);
  void to_member(Rank to, const std::vector<std::byte>& bytes);
  void act();
  void schedule_tick();
  void announce_gone(Rank rank, bool lost);

  SimOptions options;
  SimClock clock;
  std::unique_ptr<SimLoop> hub_loop;
  std::unique_ptr<control::Coordinator> coordinator;
  std::shared_ptr<net::LocalGroup> group;
  std::vector<std::unique_ptr<Node>> nodes;
  std::map<std::pair<Rank, Rank>, TimePoint> last_arrival;  // control messages keep their order on a connection
  TimerId tick;
  std::uint64_t messages = 0;
  std::vector<std::string> warnings;
  std::vector<std::string> rank_log;
  // By stream, attempt and step: the plan that the first rank there runs it by.
  std::map<std::tuple<std::uint16_t, std::uint32_t, std::uint64_t>, std::uint64_t> plans;

  void check_plan(const engine::Stream& stream) {
    const auto [it, first] =
        plans.try_emplace({stream.id().value, stream.attempt(), stream.step()}, stream.plan().digest());
    if (!first && it->second != stream.plan().digest()) {
      throw std::runtime_error("ranks run different plans: " + stream.describe());
    }
  }

  Duration in_order(Rank from, Rank to) {
    TimePoint& last = last_arrival[{from, to}];
    last = std::max(last, clock.now() + draw_delay(64));
    return last - clock.now();
  }
};

// One rank: an engine and the scenario that uses it.
class SimWorld::Impl::Node final : public RankApi, private engine::ControlLink {
 public:
  Node(Impl& world, Rank rank)
      : world_(world),
        rank_(rank),
        random_(world.options.seed * 1000003U + static_cast<std::uint64_t>(rank)),
        loop_(world.clock.make_loop()),
        timeline_(rank, "sim"),
        log_({LogLevel::kWarn, rank, false, {}, {}}, std::make_unique<Lines>(world.rank_log)) {
    loop_->run_inline([this] {
      link_ = world_.group->endpoint(rank_, *loop_);
      net_ = std::make_unique<net::DirectCollectives>(*link_);
      engine::EngineOptions options = world_.options.engine;
      if (world_.options.per_rank) {
        world_.options.per_rank(rank_, options);
      }
      engine_ = std::make_unique<engine::Engine>(
          std::move(options), engine::EngineDeps{*loop_, *net_, *this, stats_, timeline_, &log_}, [this] {
            return engine::Callers{waiting_, waiting_};
          });
    });
  }
  ~Node() override {
    loop_->kill();
    loop_->run_inline([this] {
      scenario_.reset();
      net_.reset();  // operations in flight give their memory back to the engine's pool
      engine_.reset();
      link_.reset();
    });
  }

  void start(const ScenarioFn& scenario) {
    scenario_.emplace(scenario(*this));
    loop_->post([this] { scenario_->resume(); });
  }
  bool finished() const { return dead_ || scenario_->done(); }
  bool dead() const { return dead_; }
  void rethrow() const {
    if (!dead_) {
      scenario_->rethrow();
    }
  }
  SimLoop& loop() { return *loop_; }
  engine::Engine& engine() { return *engine_; }
  Stats& stats() { return stats_; }
  bool gone() const { return dead_ || left_; }
  std::string describe() const {
    return "rank " + std::to_string(rank_) +
           (dead_      ? " (dead)"
            : waiting_ ? " (waiting)"
                       : "") +
           ": " + engine_->describe();
  }
  std::size_t in_flight() const { return net_->in_flight(); }
  const engine::Engine& engine() const { return *engine_; }

  // ---- RankApi ----

  Rank rank() const override { return rank_; }
  int size() const override { return world_.options.size; }
  std::mt19937_64& random() override { return random_; }

  std::uint64_t submit(engine::OpSpec spec) override {
    const std::uint64_t id = next_request_++;
    auto cell = cell_for<Status>();
    requests_[id] = {cell, {}};
    engine_->submit(std::move(spec), [this, id, cell](Status status, engine::OpResult result) {
      requests_[id].second = std::move(result);
      fulfil(cell, std::move(status));
    });
    return id;
  }
  Await<Status> wait(std::uint64_t request) override { return Await<Status>(requests_.at(request).first); }
  const engine::OpResult& result(std::uint64_t request) override { return requests_.at(request).second; }

  Await<Result<StreamId>> open_stream(engine::StreamSpec spec) override {
    auto cell = cell_for<Result<StreamId>>();
    engine_->open_stream(std::move(spec), [this, cell](Result<StreamId> id) { fulfil(cell, std::move(id)); });
    return Await<Result<StreamId>>(cell);
  }
  void ready(StreamId stream, int index, TensorView tensor, bool absent) override {
    engine_->stream(stream)->ready(index, tensor, absent, loop_->now());
  }
  void finish(StreamId stream) override {
    engine::Stream& s = *engine_->stream(stream);
    s.finish(s.board()->finish(loop_->now()), loop_->now());
  }
  Await<Status> wait_stream(StreamId stream) override {
    auto cell = cell_for<Status>();
    engine_->stream(stream)->wait([this, cell, stream](Status status) {
      if (const engine::Stream* s = engine_->stream(stream)) {
        world_.check_plan(*s);
      }
      fulfil(cell, std::move(status));
    });
    return Await<Status>(cell);
  }
  // As StreamTable does it.
  Await<Status> wait_tensors(StreamId stream, std::vector<int> tensors) override {
    auto cell = cell_for<Status>();
    engine::Stream& s = *engine_->stream(stream);
    const TimePoint begin = loop_->now();
    s.board()->need(tensors, begin);
    if (s.board()->reduced(tensors)) {
      fulfil(cell, Status());
    } else {
      s.wait_tensors(std::move(tensors), [this, cell, board = s.board(), begin](Status status) {
        board->slept(loop_->now() - begin);
        fulfil(cell, std::move(status));
      });
    }
    return Await<Status>(cell);
  }
  Await<Status> abort_stream(StreamId stream, std::string why) override {
    auto cell = cell_for<Status>();
    engine_->stream(stream)->abort(Status(Code::kAborted, std::move(why)), [this, cell] { fulfil(cell, Status()); });
    return Await<Status>(cell);
  }
  Await<Status> close_stream(StreamId stream) override {
    auto cell = cell_for<Status>();
    engine_->close_stream(stream, [this, cell](Status status) { fulfil(cell, std::move(status)); });
    return Await<Status>(cell);
  }
  std::vector<std::uint8_t> used(StreamId stream) override {
    const engine::StreamBoard& board = *engine_->stream(stream)->board();
    std::vector<std::uint8_t> used(board.size());
    for (std::size_t i = 0; i < used.size(); ++i) {
      used[i] = board.used(static_cast<int>(i)) ? 1 : 0;
    }
    return used;
  }

  Await<Result<Rank>> join() override {
    auto cell = cell_for<Result<Rank>>();
    engine_->join([this, cell](Result<Rank> last) { fulfil(cell, std::move(last)); });
    return Await<Result<Rank>>(cell);
  }

  Await<Status> compute(Duration duration) override {
    auto cell = std::make_shared<Await<Status>::Cell>();
    loop_->after(duration, [this, cell] { fulfil(cell, Status()); });
    return Await<Status>(cell);
  }
  Await<Status> leave() override {
    engine_->end(Status(Code::kShutdown, "left"));
    left_ = true;
    world_.announce_gone(rank_, false);
    auto cell = std::make_shared<Await<Status>::Cell>();
    fulfil(cell, Status());
    return Await<Status>(cell);
  }
  void die() override {
    dead_ = true;
    world_.group->kill(rank_, Status(Code::kAborted, "killed"));
    world_.announce_gone(rank_, true);
    loop_->kill();
  }

 private:
  void send(control::MemberMessage message) override {
    if (!gone()) {
      world_.to_coordinator(rank_, control::encode(message));
    }
  }

  template <class T>
  std::shared_ptr<typename Await<T>::Cell> cell_for() {
    auto cell = std::make_shared<typename Await<T>::Cell>();
    cell->on_wait = [this] {
      waiting_ = true;
      // A wait that lasts is reported, as the session does.
      notice_ = loop_->after(kWaitNotice, [this] { engine_->note_waiting(); });
    };
    cell->on_resume = [this] {
      waiting_ = false;
      loop_->cancel(notice_);
    };
    return cell;
  }

  template <class Cell, class T>
  void fulfil(const std::shared_ptr<Cell>& cell, T value) {
    SRT_CHECK(!cell->value.has_value());  // callbacks run once
    cell->value.emplace(std::move(value));
    if (cell->waiter) {
      loop_->post([waiter = cell->waiter] { waiter.resume(); });
    }
  }

  Impl& world_;
  const Rank rank_;
  std::mt19937_64 random_;
  std::unique_ptr<SimLoop> loop_;
  Stats stats_;
  Timeline timeline_;
  Logger log_;
  std::unique_ptr<net::LocalEndpoint> link_;
  std::unique_ptr<net::DirectCollectives> net_;
  std::unique_ptr<engine::Engine> engine_;
  std::optional<Scenario> scenario_;
  std::map<std::uint64_t, std::pair<std::shared_ptr<Await<Status>::Cell>, engine::OpResult>> requests_;
  std::uint64_t next_request_ = 1;
  TimerId notice_;
  bool waiting_ = false;
  bool left_ = false;
  bool dead_ = false;
};

void SimWorld::Impl::to_coordinator(Rank from, std::vector<std::byte> bytes) {
  ++messages;
  hub_loop->after(in_order(from, -1), [this, from, bytes = std::move(bytes)] {
    auto message = control::decode_member_message(bytes);
    SRT_CHECK(message.is_ok());
    coordinator->on_message(from, *message, clock.now());
    act();
  });
}

void SimWorld::Impl::to_member(Rank to, const std::vector<std::byte>& bytes) {
  ++messages;
  Node& node = *nodes[static_cast<std::size_t>(to)];
  node.loop().after(in_order(-1, to), [&node, bytes] { node.engine().on_message(bytes); });
}

void SimWorld::Impl::act() {
  control::Coordinator::Actions actions = coordinator->take_actions();
  for (const auto& action : actions.sends) {
    const std::vector<std::byte> bytes = control::encode(action.message);
    for (Rank r = 0; r < options.size; ++r) {
      if (action.to == control::Coordinator::kAll || action.to == r) {
        to_member(r, bytes);
      }
    }
  }
  warnings.insert(warnings.end(), actions.warnings.begin(), actions.warnings.end());
  schedule_tick();
}

void SimWorld::Impl::schedule_tick() {
  hub_loop->cancel(tick);
  tick = {};
  if (const auto next = coordinator->next_tick()) {
    tick = hub_loop->after(*next - clock.now(), [this] {
      tick = {};
      coordinator->on_tick(clock.now());
      act();
    });
  }
}

// The rendezvous notices that a rank is gone and tells the others.
void SimWorld::Impl::announce_gone(Rank rank, bool lost) {
  const Duration delay = lost ? options.death_notice : in_order(rank, -1);
  hub_loop->after(delay, [this, rank, lost] {
    if (lost) {
      coordinator->on_lost(rank);
    } else {
      coordinator->on_left(rank);
      // Its connections say good-bye behind everything it had sent.
      hub_loop->after(kGoodBye, [this, rank] {
        group->kill(rank, Status(Code::kPeerLost, "rank " + std::to_string(rank) + " has left", {rank, ""}));
      });
    }
    act();
    for (auto& node : nodes) {
      if (node->rank() == rank || node->dead()) {
        continue;
      }
      node->loop().after(in_order(-1, node->rank()), [n = node.get(), rank, lost] {
        if (lost) {
          n->engine().abort({Code::kPeerLost, "rank " + std::to_string(rank) + " died", {rank, ""}});
        } else {
          n->engine().on_left(rank);
        }
      });
    }
  });
}

SimWorld::SimWorld(SimOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->hub_loop = impl_->clock.make_loop();
  impl_->coordinator = std::make_unique<control::Coordinator>(impl_->options.size, impl_->options.stall);
  net::LocalOptions local;
  local.delay = [impl = impl_.get()](Rank, Rank, std::size_t bytes) { return impl->draw_delay(bytes); };
  impl_->group = net::LocalGroup::create(impl_->options.size, std::move(local));
  for (Rank r = 0; r < impl_->options.size; ++r) {
    impl_->nodes.push_back(std::make_unique<Impl::Node>(*impl_, r));
  }
}

SimWorld::~SimWorld() = default;

TimePoint SimWorld::now() const {
  return impl_->clock.now();
}
std::uint64_t SimWorld::control_messages() const {
  return impl_->messages;
}
const std::vector<std::string>& SimWorld::rank_log() const {
  return impl_->rank_log;
}
std::uint64_t SimWorld::counter(std::string_view name) {
  std::uint64_t sum = 0;
  for (const auto& node : impl_->nodes) {
    sum += node->stats().counter(name).value();
  }
  return sum;
}
const std::vector<std::string>& SimWorld::warnings() const {
  return impl_->warnings;
}

std::string SimWorld::run(const ScenarioFn& scenario) {
  const TimePoint begin = impl_->clock.now();
  const auto report = [&](const std::string& what) {
    std::string text = "seed " + std::to_string(impl_->options.seed) + ": " + what;
    for (const auto& node : impl_->nodes) {
      text += "\n  " + node->describe();
    }
    return text;
  };
  for (auto& node : impl_->nodes) {
    node->start(scenario);
  }
  const auto all_finished = [&] {
    return std::all_of(impl_->nodes.begin(), impl_->nodes.end(), [](const auto& n) { return n->finished(); });
  };
  try {
    while (!all_finished()) {
      if (!impl_->clock.step()) {
        return report("deadlock: nothing is left to do");
      }
      // A rank that failed leaves the others waiting: its error says more than theirs.
      for (const auto& node : impl_->nodes) {
        if (node->finished()) {
          node->rethrow();
        }
      }
      if (impl_->clock.now() - begin > impl_->options.limit) {
        return report("no end in sight after " + std::to_string(impl_->options.limit / std::chrono::seconds(1)) +
                      " virtual seconds");
      }
    }
    for (const auto& node : impl_->nodes) {
      node->rethrow();
    }
  } catch (const std::exception& error) {
    return report(error.what());
  }
  return {};
}

std::string SimWorld::check_quiet() const {
  for (const auto& node : impl_->nodes) {
    if (!node->dead() && (node->in_flight() != 0 || !node->engine().idle())) {
      return "rank " + std::to_string(node->rank()) + " is not quiet: " + node->describe();
    }
  }
  return {};
}

}  // namespace sirtaki::world
