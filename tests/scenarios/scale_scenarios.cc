#include "tests/scenarios/scale_scenarios.h"

#include <algorithm>
#include <functional>
#include <map>

#include "tests/scenarios/support.h"
#include "tests/world/world.h"

namespace sirtaki::scenarios {
namespace {

using world::RankApi;
using world::Scenario;
using world::SimWorld;
using world::Traffic;

constexpr Duration kPreparation = std::chrono::seconds(5);
constexpr std::int64_t kElements = 4;  // elements of one tensor; the world counts each byte many times
constexpr Duration kStepTime = std::chrono::milliseconds(50);

Traffic difference(const Traffic& now, const Traffic& before) {
  Traffic t;
  t.sent = now.sent - before.sent;
  t.received = now.received - before.received;
  t.bytes_sent = now.bytes_sent - before.bytes_sent;
  t.bytes_received = now.bytes_received - before.bytes_received;
  t.membership = now.membership - before.membership;
  t.busy = now.busy - before.busy;
  return t;
}

// Marks of the measured part.
class Marks {
 public:
  Marks(const ScaleOptions& scale, ScaleResult& result) : options(scale), result_(result) {}

  void attach(const SimWorld& world, int size) {
    world_ = &world;
    instant_ = world.now() + kPreparation;
    result_.took.resize(static_cast<std::size_t>(size));
  }
  Duration until_instant(RankApi& api) const {
    const auto skew = static_cast<std::uint64_t>(options.skew.count());
    return instant_ - world_->now() + Duration(static_cast<std::int64_t>(api.random()() % (skew + 1)));
  }
  void begin() {
    if (before_.empty()) {
      before_ = traffic();
      operations_before_ = world_->data_operations();
    }
  }
  // Ends the measured part; `since` is relative to the common instant.
  void end(RankApi& api, Duration since = {}) {
    result_.took[static_cast<std::size_t>(api.rank())] = world_->now() - instant_ - since;
  }
  void finish() {
    std::vector<Traffic> after = traffic();
    for (std::size_t i = 0; i < after.size(); ++i) {
      after[i] = difference(after[i], before_[i]);
    }
    result_.coordinator = after.back();
    after.pop_back();
    result_.ranks = std::move(after);
    result_.data_operations = world_->data_operations() - operations_before_;
  }

  const ScaleOptions& options;

 private:
  std::vector<Traffic> traffic() const {
    std::vector<Traffic> all;
    for (Rank r = 0; r < static_cast<Rank>(result_.took.size()); ++r) {
      all.push_back(world_->control().traffic(r));
    }
    all.push_back(world_->control().coordinator_traffic());
    return all;
  }

  ScaleResult& result_;
  const SimWorld* world_ = nullptr;
  TimePoint instant_;
  std::vector<Traffic> before_;
  std::uint64_t operations_before_ = 0;
};

engine::StreamSpec spec_of(int tensors) {
  engine::StreamSpec spec;
  spec.name = "optimizer";
  spec.reduce_op = ReduceOp::kSum;
  for (int i = 0; i < tensors; ++i) {
    engine::StreamTensor tensor;
    tensor.name = "layer" + std::to_string(i) + ".weight";
    tensor.dims = {kElements};
    spec.tensors.push_back(std::move(tensor));
  }
  return spec;
}

// Every rank contributes its rank plus one; absent ranks contribute nothing.
class Gradients {
 public:
  explicit Gradients(int tensors) : tensors_(static_cast<std::size_t>(tensors)) {}

  void submit(RankApi& api, StreamId stream, int absent) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const bool missing = static_cast<int>(t) == absent;
      tensors_[t].values.assign(kElements, missing ? 0.0F : static_cast<float>(api.rank() + 1));
      api.ready(stream, static_cast<int>(t), tensors_[t].view(), missing);
    }
    api.finish(stream);
  }
  // `less`: the missing part of a tensor's sum over all ranks.
  void check(RankApi& api, const std::function<std::int64_t(std::size_t)>& less) const {
    const std::int64_t all = static_cast<std::int64_t>(api.size()) * (api.size() + 1) / 2;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const auto expected = static_cast<float>(all - less(t));
      require(tensors_[t].values == std::vector<float>(kElements, expected),
              "wrong sum of tensor " + std::to_string(t));
    }
  }

 private:
  std::vector<Owned> tensors_;
};

// steady_state: steps after some warm-up steps. plan_change: the first steps of a stream, in which ranks measure and
// replan. unused_parameter: in the measured step every rank lacks another tensor, for the first time.
Scenario run_stream(RankApi& api, Marks& marks, int steps_before, int steps, bool unused) {
  const auto stream = co_await api.open_stream(spec_of(marks.options.tensors));
  require_ok(stream.status(), "opening the stream");
  Gradients gradients(marks.options.tensors);
  const auto nothing = [](std::size_t) { return std::int64_t{0}; };
  for (int s = 0; s < steps_before + steps; ++s) {
    if (s == steps_before) {
      require_ok(co_await api.compute(marks.until_instant(api)), "preparing");
      marks.begin();
    } else {
      require_ok(co_await api.compute(kStepTime), "computing");
    }
    const int tensors = marks.options.tensors;
    gradients.submit(api, *stream, unused && s >= steps_before ? api.rank() % tensors : -1);
    require_ok(co_await api.wait_stream(*stream), "step " + std::to_string(s));
    gradients.check(api, unused && s >= steps_before ? [&api, tensors](std::size_t t) {
      std::int64_t less = 0;
      for (Rank r = static_cast<Rank>(t); r < api.size(); r += tensors) {
        less += r + 1;
      }
      return less;
    } : std::function<std::int64_t(std::size_t)>(nothing));
  }
  marks.end(api, kStepTime * (steps - 1));
}

Scenario run_names(RankApi& api, Marks& marks, int names) {
  require_ok(co_await api.compute(marks.until_instant(api)), "preparing");
  marks.begin();
  std::vector<Owned> tensors(static_cast<std::size_t>(names));
  std::vector<std::uint64_t> requests;
  for (int n = 0; n < names; ++n) {
    Owned& tensor = tensors[static_cast<std::size_t>(n)];
    tensor.values.assign(kElements, 1.0F);
    requests.push_back(api.submit(allreduce("metric" + std::to_string(n), tensor)));
  }
  for (const std::uint64_t request : requests) {
    require_ok(co_await api.wait(request), "first use");
  }
  for (const Owned& tensor : tensors) {
    require(tensor.values.front() == static_cast<float>(api.size()), "wrong sum");
  }
  marks.end(api);
}

Scenario run_open(RankApi& api, Marks& marks) {
  require_ok(co_await api.compute(marks.until_instant(api)), "preparing");
  marks.begin();
  const auto stream = co_await api.open_stream(spec_of(marks.options.tensors));
  require_ok(stream.status(), "opening the stream");
  marks.end(api);
}

// Measures from the arrival of the last rank.
Scenario run_late(RankApi& api, Marks& marks) {
  require_ok(co_await api.compute(marks.until_instant(api)), "preparing");
  marks.begin();
  if (api.rank() == api.size() - 1) {
    require_ok(co_await api.compute(marks.options.lateness), "being late");
  }
  Owned tensor;
  tensor.values.assign(kElements, 1.0F);
  require_ok(co_await api.run(allreduce("after validation", tensor)), "a rank that is only late");
  marks.end(api, marks.options.lateness);
}

// A rank in the middle dies, one that carries a relay if there are any, while all others wait for it.
Scenario run_dead(RankApi& api, Marks& marks) {
  Owned tensor;
  tensor.values.assign(kElements, 1.0F);
  require_ok(co_await api.run(allreduce("grad", tensor)), "before");
  require_ok(co_await api.compute(marks.until_instant(api)), "preparing");
  marks.begin();
  const Rank victim = api.size() / 2;
  if (api.rank() == victim) {
    api.die();
    co_await api.compute(std::chrono::hours(1));
  }
  const Status status = co_await api.run(allreduce("grad", tensor));
  require(status.code() == Code::kPeerLost, "expected a lost peer, got " + status.to_string());
  require(status.text().find("rank " + std::to_string(victim)) != std::string_view::npos, status.to_string());
  marks.end(api);
}

Scenario run_idle(RankApi& api, Marks& marks) {
  require_ok(co_await api.compute(marks.until_instant(api)), "preparing");
  marks.begin();
  require_ok(co_await api.compute(std::chrono::minutes(1)), "idle");
  marks.end(api);
}

Scenario run_end(RankApi& api, Marks& marks) {
  Owned tensor;
  tensor.values.assign(kElements, 1.0F);
  require_ok(co_await api.run(allreduce("grad", tensor)), "before");
  require_ok(co_await api.compute(marks.until_instant(api)), "preparing");
  marks.begin();
  require_ok(co_await api.leave(), "leaving");
  marks.end(api);
  // The good-byes are still in transit.
  require_ok(co_await api.compute(std::chrono::seconds(60)), "after the end");
}

}  // namespace

const std::vector<std::string>& scale_scenarios() {
  static const std::vector<std::string> kAll = {
      "steady_state",     "plan_change", "first_use_name", "first_use_names", "first_use_stream",
      "unused_parameter", "late_rank",   "dead_rank",      "heartbeats",      "end"};
  return kAll;
}

ScaleResult run_scale(const std::string& scenario, world::SimOptions world_options, const ScaleOptions& options) {
  ScaleResult result;
  result.scenario = scenario;
  Marks marks(options, result);
  const std::map<std::string, world::ScenarioFn> known = {
      {"steady_state", [&](RankApi& api) { return run_stream(api, marks, 3, options.steps, false); }},
      {"plan_change", [&](RankApi& api) { return run_stream(api, marks, 1, 2 * options.steps, false); }},
      {"first_use_name", [&](RankApi& api) { return run_names(api, marks, 1); }},
      {"first_use_names", [&](RankApi& api) { return run_names(api, marks, options.names); }},
      {"first_use_stream", [&](RankApi& api) { return run_open(api, marks); }},
      {"unused_parameter", [&](RankApi& api) { return run_stream(api, marks, 3, 1, true); }},
      {"late_rank", [&](RankApi& api) { return run_late(api, marks); }},
      {"dead_rank", [&](RankApi& api) { return run_dead(api, marks); }},
      {"heartbeats", [&](RankApi& api) { return run_idle(api, marks); }},
      {"end", [&](RankApi& api) { return run_end(api, marks); }},
  };
  if (scenario == "heartbeats") {
    world_options.control.heartbeat_interval = std::chrono::seconds(1);
  }
  const int size = world_options.size;
  SimWorld world(std::move(world_options));
  marks.attach(world, size);
  result.error = world.run(known.at(scenario));
  if (result.error.empty()) {
    marks.finish();
  }
  return result;
}

}  // namespace sirtaki::scenarios
