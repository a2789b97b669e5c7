#include "tests/world/sim_world.h"

#include <cstdint>
#include <map>
#include <stdexcept>
#include <tuple>

#include "runtime/net/collectives/direct.h"
#include "runtime/net/link/inproc_link.h"

namespace sirtaki::world {
namespace {

constexpr Duration kWaitNotice = std::chrono::milliseconds(250);  // same as in Session: a longer wait is reported

constexpr std::size_t kDescribed = 16;  // limit of ranks described after a failed run; beyond it, only unfinished ones

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
    const auto spread = static_cast<std::uint64_t>((options.max_delay - options.min_delay).count());
    const auto wire = static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / options.bytes_per_second);
    return options.min_delay + Duration(static_cast<std::int64_t>(clock.random()() % (spread + 1)) + wire);
  }

  void kill_data_plane_of(Rank rank, const Status& cause) {
    if (abstract_group) {
      abstract_group->kill(rank);
    } else {
      group->kill(rank, cause);
    }
  }

  SimOptions options;
  SimClock clock;
  std::unique_ptr<SimControl> control;
  std::shared_ptr<net::InprocGroup> group;
  std::shared_ptr<AbstractGroup> abstract_group;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::string> rank_log;
  // Hash of the plan that the first rank used, by stream, attempt and step.
  std::map<std::tuple<std::uint16_t, std::uint32_t, std::uint64_t>, std::uint64_t> plans;

  void check_plan(const engine::GradientStream& stream) {
    const std::uint64_t plan = stream.plan().digest();
    const auto [it, first] = plans.try_emplace({stream.id().value, stream.attempt(), stream.step()}, plan);
    if (!first && it->second != plan) {
      throw std::runtime_error("ranks run different plans: " + stream.describe());
    }
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
        log_({.level = world.options.log_level, .rank = rank, .timestamps = false, .wall_clock = {}, .clock = {}},
             std::make_unique<Lines>(world.rank_log)) {
    loop_->run_inline([this] {
      make_net();
      engine::EngineOptions options = world_.options.engine;
      if (world_.options.per_rank) {
        world_.options.per_rank(rank_, options);
      }
      engine_ = std::make_unique<engine::Engine>(
          std::move(options), engine::EngineDeps{*loop_, *net_, *this, stats_, timeline_, &log_}, [this] {
            return engine::Callers{waiting_, waiting_};
          });
    });
    world_.control->attach(rank_, *loop_,
                           {[this](ConstBytes bytes) {
                              record(Recorder::Kind::kToRank, 0, bytes);
                              engine_->on_message(bytes);
                            },
                            [this](Rank gone, bool lost) { on_gone(gone, lost); }});
  }
  ~Node() override {
    loop_->kill();
    loop_->run_inline([this] {
      scenario_.reset();
      net_.reset();  // operations in flight return their memory to the pool of the engine
      engine_.reset();
      recorded_.reset();
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
  std::size_t in_flight() const { return in_flight_(); }
  const engine::Engine& engine() const { return *engine_; }

  // ---- RankApi ----

  Rank rank() const override { return rank_; }
  int size() const override { return world_.options.size; }
  std::mt19937_64& random() override { return random_; }

  std::uint64_t submit(engine::OpSpec spec) override {
    const std::uint64_t id = next_request_++;
    auto cell = cell_for<Status>();
    requests_[id] = {cell, {}};
    const TensorView output = spec.output;
    engine_->submit(std::move(spec), [this, id, cell, output](Status status, engine::OpResult result) {
      record(id, status);
      if (status.ok()) {
        record(Recorder::Kind::kResult, id, output.data == nullptr ? ConstBytes(result.data) : output.bytes());
      }
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
    gradients_[{stream.value, index}] = tensor;
    engine_->stream(stream)->ready(index, tensor, absent, loop_->now());
  }
  void finish(StreamId stream) override {
    engine::GradientStream& s = *engine_->stream(stream);
    s.finish(s.board()->finish(loop_->now()), loop_->now());
  }
  Await<Status> wait_stream(StreamId stream) override {
    auto cell = cell_for<Status>();
    engine_->stream(stream)->wait([this, cell, stream](Status status) {
      if (const engine::GradientStream* s = engine_->stream(stream)) {
        world_.check_plan(*s);
        const std::uint64_t plan = s->plan().digest();
        record(Recorder::Kind::kPlan, s->step(), std::as_bytes(std::span(&plan, 1)));
      }
      record_gradients(stream, status);
      fulfil(cell, std::move(status));
    });
    return Await<Status>(cell);
  }
  // Follows StreamTable.
  Await<Status> wait_tensors(StreamId stream, std::vector<int> tensors) override {
    auto cell = cell_for<Status>();
    engine::GradientStream& s = *engine_->stream(stream);
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

  Status residual(StreamId stream, int index, std::span<float> out) override {
    Status read;  // host memory can be read at once
    engine_->stream(stream)->residual(index, out, [&read](Status status) { read = std::move(status); });
    return read;
  }
  Status set_residual(StreamId stream, int index, std::span<const float> in) override {
    return engine_->stream(stream)->set_residual(index, in);
  }
  void report_loss(StreamId stream, double loss) override { engine_->stream(stream)->report_loss(loss); }

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
    world_.control->leave(rank_);
    auto cell = std::make_shared<Await<Status>::Cell>();
    fulfil(cell, Status());
    return Await<Status>(cell);
  }
  void die() override {
    dead_ = true;
    world_.kill_data_plane_of(rank_, Status(Code::kAborted, "killed"));
    world_.control->die(rank_);
    loop_->kill();
  }

 private:
  void send(control::MemberMessage message) override {
    if (!gone()) {
      if (world_.options.recorder != nullptr) {
        record(Recorder::Kind::kToCoordinator, 0, control::encode(message));
      }
      world_.control->send(rank_, message);
    }
  }
  void on_gone(Rank rank, bool lost) {
    if (lost) {
      engine_->abort({Code::kPeerLost, "rank " + std::to_string(rank) + " died", {rank, ""}});
    } else {
      engine_->on_left(rank);
    }
  }
  void make_net() {
    if (world_.abstract_group) {
      net_ = world_.abstract_group->endpoint(rank_, *loop_);
      in_flight_ = [this] { return world_.abstract_group->in_flight(rank_); };
      return;
    }
    link_ = world_.group->endpoint(rank_, *loop_);
    net::PointToPoint* link = link_.get();
    if (world_.options.recorder != nullptr) {
      recorded_ = world_.options.recorder->over(*link_);
      link = recorded_.get();
    }
    auto direct = std::make_unique<net::DirectCollectives>(*link);
    in_flight_ = [net = direct.get()] { return net->in_flight(); };
    net_ = std::move(direct);
  }

  void record(Recorder::Kind kind, std::uint64_t key, ConstBytes bytes) {
    if (world_.options.recorder != nullptr) {
      world_.options.recorder->add(kind, rank_, key, bytes);
    }
  }
  // Records the code alone: error texts may be reworded.
  void record(std::uint64_t key, const Status& status) {
    const auto code = static_cast<std::uint64_t>(status.code());
    record(Recorder::Kind::kStatus, key, std::as_bytes(std::span(&code, 1)));
  }
  void record_gradients(StreamId stream, const Status& status) {
    record(stream.value, status);
    for (auto at = gradients_.begin(); at != gradients_.end();) {
      if (at->first.first != stream.value) {
        ++at;
        continue;
      }
      if (status.ok() && at->second.data != nullptr) {
        record(Recorder::Kind::kResult, static_cast<std::uint64_t>(at->first.second), at->second.bytes());
      }
      at = gradients_.erase(at);
    }
  }

  template <class T>
  std::shared_ptr<typename Await<T>::Cell> cell_for() {
    auto cell = std::make_shared<typename Await<T>::Cell>();
    cell->on_wait = [this] {
      waiting_ = true;
      // A long wait is reported, as the session does.
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
  std::unique_ptr<net::InprocEndpoint> link_;
  std::unique_ptr<net::PointToPoint> recorded_;  // over link_, if the world has a recorder
  // Tensors given since the last wait of the stream, by stream and index.
  std::map<std::pair<std::uint16_t, int>, TensorView> gradients_;
  std::unique_ptr<net::Collectives> net_;
  std::function<std::size_t()> in_flight_;
  std::unique_ptr<engine::Engine> engine_;
  std::optional<Scenario> scenario_;
  std::map<std::uint64_t, std::pair<std::shared_ptr<Await<Status>::Cell>, engine::OpResult>> requests_;
  std::uint64_t next_request_ = 1;
  TimerId notice_;
  bool waiting_ = false;
  bool left_ = false;
  bool dead_ = false;
};

SimWorld::SimWorld(SimOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  Impl* impl = impl_.get();
  impl->options.control.size = impl->options.size;
  impl->control = std::make_unique<SimControl>(
      impl->clock, impl->options.control, [impl](std::size_t bytes) { return impl->draw_delay(bytes); },
      [impl](Rank rank) {
        impl->kill_data_plane_of(rank,
                                 Status(Code::kPeerLost, "rank " + std::to_string(rank) + " has left", {rank, ""}));
      });
  if (impl->options.abstract_net) {
    impl->abstract_group = std::make_shared<AbstractGroup>(impl->options.size, *impl->options.abstract_net);
  } else {
    net::LocalOptions local;
    local.delay = [impl](Rank, Rank, std::size_t bytes) { return impl->draw_delay(bytes); };
    impl->group = net::InprocGroup::create(impl->options.size, std::move(local));
  }
  for (Rank r = 0; r < impl->options.size; ++r) {
    impl->nodes.push_back(std::make_unique<Impl::Node>(*impl, r));
  }
  impl->control->start();
}

SimWorld::~SimWorld() = default;

TimePoint SimWorld::now() const {
  return impl_->clock.now();
}
std::uint64_t SimWorld::control_messages() const {
  return impl_->control->messages();
}
std::uint64_t SimWorld::data_operations() const {
  return impl_->abstract_group ? impl_->abstract_group->operations() : 0;
}
const SimControl& SimWorld::control() const {
  return *impl_->control;
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
  return impl_->control->warnings();
}

std::string SimWorld::run(const ScenarioFn& scenario) {
  const TimePoint begin = impl_->clock.now();
  const auto report = [&](const std::string& what) {
    std::string text = "seed " + std::to_string(impl_->options.seed) + ": " + what;
    std::size_t described = 0;
    for (const auto& node : impl_->nodes) {
      if (impl_->nodes.size() <= kDescribed || (!node->finished() && described < kDescribed)) {
        text += "\n  " + node->describe();
        ++described;
      }
    }
    return text;
  };
  for (auto& node : impl_->nodes) {
    node->start(scenario);
  }
  std::size_t finished = 0;  // nodes before this index have finished
  const auto all_finished = [&] {
    while (finished < impl_->nodes.size() && impl_->nodes[finished]->finished()) {
      ++finished;
    }
    return finished == impl_->nodes.size();
  };
  try {
    while (!all_finished()) {
      if (!impl_->clock.step()) {
        return report("deadlock: nothing is left to do");
      }
      // A rank that failed leaves the others waiting: its error explains theirs.
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
