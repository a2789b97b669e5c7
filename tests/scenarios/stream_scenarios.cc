#include <algorithm>

#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/support.h"

namespace sirtaki::scenarios {
namespace {

constexpr int kTensors = 24;

engine::StreamSpec make_spec(std::uint64_t seed) {
  engine::StreamSpec spec;
  spec.name = "optimizer";
  spec.reduce_op = ReduceOp::kSum;
  for (int i = 0; i < kTensors; ++i) {
    engine::StreamTensor tensor;
    tensor.name = "layer" + std::to_string(i);
    // From nothing over small ones that share a partition to big ones that are cut.
    const std::uint64_t draw = shared_draw(seed, static_cast<std::uint64_t>(i), 21);
    const std::int64_t sizes[] = {0, 1, 7, 64, 300, 5000, 20000};
    tensor.dims = {sizes[draw % 7]};
    spec.tensors.push_back(std::move(tensor));
  }
  return spec;
}

// What one rank holds of the stream's tensors in one step.
struct Step {
  std::vector<Owned> tensors;
  std::vector<std::vector<bool>> contributes;  // by tensor, by rank

  Step(const RankApi& api, const engine::StreamSpec& spec, std::uint64_t salt, std::uint64_t seed, bool some_absent) {
    for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
      std::vector<bool> who = everybody(api.size());
      for (std::size_t r = 0; some_absent && r < who.size(); ++r) {
        who[r] = shared_draw(seed, salt * 100 + t, 40 + r) % 4 != 0;
      }
      const auto count = static_cast<std::size_t>(spec.tensors[t].dims.front());
      Owned tensor = filled(api.rank(), salt + t, count);
      if (!who[static_cast<std::size_t>(api.rank())]) {
        std::fill(tensor.values.begin(), tensor.values.end(), 0.0F);
      }
      tensors.push_back(std::move(tensor));
      contributes.push_back(std::move(who));
    }
  }

  void check(std::uint64_t salt, const std::vector<std::uint8_t>& used, bool some_absent,
             const std::string& what) const {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::string name = what + ", tensor " + std::to_string(t);
      require_sum(tensors[t], contributes[t], salt + t, name);
      const bool any = std::find(contributes[t].begin(), contributes[t].end(), true) != contributes[t].end();
      require(!some_absent || (used[t] != 0) == any, name + ": wrong about who used it");
    }
  }
};

void submit_step(RankApi& api, StreamId stream, Step& step) {
  const auto me = static_cast<std::size_t>(api.rank());
  std::vector<int> absent;
  for (const int t : shuffled(static_cast<int>(step.tensors.size()), api.random())) {
    const auto i = static_cast<std::size_t>(t);
    if (step.contributes[i][me]) {
      api.ready(stream, t, step.tensors[i].view(), false);
    } else {
      absent.push_back(t);
    }
  }
  for (const int t : absent) {
    api.ready(stream, t, step.tensors[static_cast<std::size_t>(t)].view(), true);
  }
  api.finish(stream);
}

Scenario run_steps(RankApi& api, std::uint64_t seed, int steps, bool some_absent) {
  const engine::StreamSpec spec = make_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  // Step indices of each rank drift: nothing but the stream holds them together.
  for (int s = 0; s < steps; ++s) {
    const auto salt = static_cast<std::uint64_t>(s) * 10;
    const bool absent_now = some_absent && s >= 2;
    Step step(api, spec, salt, seed, absent_now);
    require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 3000)), "computing");
    submit_step(api, *stream, step);
    require_ok(co_await api.wait_stream(*stream), "step " + std::to_string(s));
    step.check(salt, api.used(*stream), absent_now, "step " + std::to_string(s));
  }
}

// One rank gives the step up in the middle of it.
void deviate(RankApi& api, StreamId stream, Step& step, bool wrong_size) {
  // All of them when it fails after its last gradient: even then no other rank may complete the step.
  const int until = wrong_size ? kTensors / 2 : 0;
  for (int t = kTensors - 1; t >= until; --t) {
    api.ready(stream, t, step.tensors[static_cast<std::size_t>(t)].view(), false);
  }
  if (wrong_size) {
    TensorView view = step.tensors[0].view();
    view.numel += 1;  // the engine refuses it without touching it
    api.ready(stream, 0, view, false);
  }
}

Scenario run_deviations(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = make_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (int s = 0; s < steps; ++s) {
    const auto place = static_cast<std::uint64_t>(s);
    const auto salt = place * 10;
    const std::string what = "step " + std::to_string(s);
    const std::uint64_t kind = shared_draw(seed, place, 31) % 4;  // 0: abort, 1: wrong size, else: a good step
    const Rank culprit = static_cast<Rank>(shared_draw(seed, place, 32) % static_cast<std::uint64_t>(api.size()));
    Step step(api, spec, salt, seed, false);
    if (kind >= 2) {
      submit_step(api, *stream, step);
      require_ok(co_await api.wait_stream(*stream), what);
      step.check(salt, api.used(*stream), false, what);
      continue;
    }
    if (api.rank() == culprit) {
      deviate(api, *stream, step, kind == 1);
      if (kind == 0) {
        require_ok(co_await api.abort_stream(*stream, "out of memory"), what + ", aborting");
        continue;
      }
    } else {
      submit_step(api, *stream, step);
    }
    const Status status = co_await api.wait_stream(*stream);
    require(status.code() == (kind == 0 ? Code::kAborted : Code::kMismatch), what + ": got " + status.to_string());
    require(kind == 0 || status.text().find("layer0") != std::string_view::npos,
            what + ": the error does not name the tensor: " + status.to_string());
  }
}

// One tensor's result, before the step is over.
void check_tensor(RankApi& api, StreamId stream, const Step& step, std::uint64_t salt, int t) {
  const auto i = static_cast<std::size_t>(t);
  const std::string name = "tensor " + std::to_string(t);
  require_sum(step.tensors[i], step.contributes[i], salt + i, name);
  const bool any = std::find(step.contributes[i].begin(), step.contributes[i].end(), true) != step.contributes[i].end();
  require((api.used(stream)[i] != 0) == any, name + ": wrong about who used it");
}

// How a step of run_forward goes, the same on all ranks.
enum class Turn { kGood, kAbsent, kAborted, kWrongSize };

Turn turn_of(std::uint64_t seed, std::uint64_t place) {
  const std::uint64_t draw = shared_draw(seed, place, 33) % 10;
  if (draw < 2) {
    return draw == 0 ? Turn::kAborted : Turn::kWrongSize;
  }
  return draw < 5 && place >= 2 && seed % 2 == 0 ? Turn::kAbsent : Turn::kGood;
}

Scenario run_forward(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = make_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (int s = 0; s < steps; ++s) {
    const auto place = static_cast<std::uint64_t>(s);
    const auto salt = place * 10;
    const std::string what = "step " + std::to_string(s);
    const Turn turn = turn_of(seed, place);
    const bool bad = turn == Turn::kAborted || turn == Turn::kWrongSize;
    const Code code = turn == Turn::kAborted ? Code::kAborted : Code::kMismatch;
    const Rank culprit = static_cast<Rank>(shared_draw(seed, place, 34) % static_cast<std::uint64_t>(api.size()));
    Step step(api, spec, salt, seed, turn == Turn::kAbsent);
    if (bad && api.rank() == culprit) {
      deviate(api, *stream, step, turn == Turn::kWrongSize);
      if (turn == Turn::kAborted) {
        require_ok(co_await api.abort_stream(*stream, "out of memory"), what + ", aborting");
        continue;
      }
    } else {
      submit_step(api, *stream, step);
    }
    Owned metric = filled(api.rank(), salt, 700);
    const std::uint64_t urgent = bad ? 0 : api.submit(allreduce("metric", metric));
    for (int t = 0; t < kTensors;) {
      std::vector<int> layer(1 + api.random()() % 3, t);
      std::iota(layer.begin(), layer.end(), t);
      layer.resize(std::min(layer.size(), static_cast<std::size_t>(kTensors - t)));
      t += static_cast<int>(layer.size());
      const Status status = co_await api.wait_tensors(*stream, layer);
      if (bad) {
        require(status.code() == code, what + ": a tensor of a void step got " + status.to_string());
        continue;
      }
      require_ok(status, what + ", layer before " + std::to_string(t));
      for (const int index : layer) {
        check_tensor(api, *stream, step, salt, index);
      }
      if (api.random()() % 4 == 0) {
        require_ok(co_await api.compute(std::chrono::microseconds(api.random()() % 2000)), "the layer's forward");
      }
      if (t == kTensors / 2) {
        require_ok(co_await api.wait(urgent), what + ", metric");
      }
    }
    const Status status = co_await api.wait_stream(*stream);
    require(status.code() == (bad ? code : Code::kOk), what + ": got " + status.to_string());
    if (!bad) {
      require_ok(co_await api.wait(urgent), what + ", metric");
      require_sum(metric, everybody(api.size()), salt, what + ", metric");
      step.check(salt, api.used(*stream), turn == Turn::kAbsent, what);
    }
  }
}

constexpr int kLayers = 16;
static_assert(kReplannedPoints == 2 * kLayers + 3);

engine::StreamSpec layered_spec(std::uint64_t seed) {
  engine::StreamSpec spec;
  spec.name = "optimizer";
  spec.reduce_op = ReduceOp::kSum;
  for (int i = 0; i < kLayers; ++i) {
    engine::StreamTensor tensor;
    tensor.name = "layer" + std::to_string(i);
    tensor.dims = {static_cast<std::int64_t>(100 + shared_draw(seed, static_cast<std::uint64_t>(i), 22) % 8000)};
    spec.tensors.push_back(std::move(tensor));
  }
  return spec;
}

Scenario run_replanned(RankApi& api, std::uint64_t seed, int steps, GiveUpAt at) {
  const engine::StreamSpec spec = layered_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  const Rank culprit = static_cast<Rank>(seed % static_cast<std::uint64_t>(api.size()));
  bool recovered = at.step < 0;
  for (int s = 0; s < steps; ++s) {
    const std::string what = "step " + std::to_string(s) + (recovered ? "" : " before the one given up");
    require(recovered || s <= at.step + 1, what + ": nobody said that a step was given up");
    const std::uint64_t salt = static_cast<std::uint64_t>(s) * 10 + (recovered ? 1000 : 0);
    Step step(api, spec, salt, seed, false);
    int left = !recovered && api.rank() == culprit && s == at.step ? at.point : -1;
    Status status;
    for (int t = 0; t < kLayers && left != 0; ++t, --left) {
      require_ok(co_await api.compute(std::chrono::microseconds(400 + api.random()() % 100)), "backward");
      api.ready(*stream, t, step.tensors[static_cast<std::size_t>(t)].view(), false);
    }
    if (left != 0) {
      api.finish(*stream);
      --left;
    }
    for (int t = 0; t < kLayers && left != 0 && status; ++t, --left) {
      status = co_await api.wait_tensors(*stream, std::vector<int>(1, t));
      if (status) {
        require_sum(step.tensors[static_cast<std::size_t>(t)], everybody(api.size()),
                    salt + static_cast<std::uint64_t>(t), what);
        require_ok(co_await api.compute(std::chrono::microseconds(200 + api.random()() % 50)), "forward");
      }
    }
    if (left == 0 || left == 1) {
      require_ok(co_await api.abort_stream(*stream, "enough"), "aborting");
      recovered = true;
      s = -1;
      continue;
    }
    const Status end = co_await api.wait_stream(*stream);
    require(status.is_ok() || status.code() == end.code(), what + ": " + status.to_string() + ", " + end.to_string());
    if (!end) {
      require(!recovered && end.code() == Code::kAborted, what + ": " + end.to_string());
      recovered = true;
      s = -1;
      continue;
    }
    step.check(salt, api.used(*stream), false, what);
  }
}

Scenario run_woken(RankApi& api, bool closes) {
  const std::vector<int> wanted{0, 5};
  const engine::StreamSpec spec = make_spec(5);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  Step step(api, spec, 0, 5, false);
  if (api.rank() == api.size() - 1 && api.size() > 1) {
    if (!closes) {
      submit_step(api, *stream, step);
      const Status status = co_await api.wait_stream(*stream);
      require(status.code() == Code::kAborted, "the last rank got " + status.to_string());
    }
    co_return;
  }
  submit_step(api, *stream, step);
  if (api.rank() != 0) {
    const Status status = co_await api.wait_tensors(*stream, wanted);
    require(!status.is_ok(), "a tensor of a void step");
    co_return;
  }
  auto pending = api.wait_tensors(*stream, wanted);
  if (closes) {
    require_ok(co_await api.close_stream(*stream), "closing");
  } else {
    require_ok(co_await api.abort_stream(*stream, "enough"), "aborting");
  }
  const Status status = co_await pending;
  require(status.code() == Code::kAborted, "woken with " + status.to_string());
}

Scenario run_dying(RankApi& api, int steps) {
  const engine::StreamSpec spec = make_spec(6);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  const Rank last = api.size() - 1;
  for (int s = 0;; ++s) {
    Step step(api, spec, 0, 6, false);
    if (api.rank() == last && s == steps) {
      deviate(api, *stream, step, false);
      api.die();
      co_await api.compute(std::chrono::hours(1));
    }
    submit_step(api, *stream, step);
    Status status;
    for (int t = 0; t < kTensors && status; ++t) {
      status = co_await api.wait_tensors(*stream, std::vector<int>(1, t));
    }
    const Status end = co_await api.wait_stream(*stream);
    require(end.code() == status.code(), "told " + status.to_string() + ", then " + end.to_string());
    if (!status) {
      // What the last rank sent of the step before may be lost with it.
      require(s >= steps - 1, "failed too early: " + status.to_string());
      require(status.text().find("rank " + std::to_string(last)) != std::string_view::npos,
              "the error does not name the rank: " + status.to_string());
      co_return;
    }
  }
}

// The less there is to send, the sooner a step is over.
engine::StreamSpec tiny_spec(std::uint64_t seed) {
  engine::StreamSpec spec = make_spec(seed);
  spec.tensors.resize(1 + seed % 3);
  for (engine::StreamTensor& tensor : spec.tensors) {
    tensor.dims = {8};
  }
  return spec;
}

// A step in which rank `idle` has no gradients.
Step idle_step(const RankApi& api, const engine::StreamSpec& spec, std::uint64_t salt, Rank idle) {
  Step step(api, spec, salt, 0, false);
  for (std::size_t t = 0; t < step.tensors.size(); ++t) {
    step.contributes[t][static_cast<std::size_t>(idle)] = false;
    if (api.rank() == idle) {
      std::fill(step.tensors[t].values.begin(), step.tensors[t].values.end(), 0.0F);
    }
  }
  return step;
}

// One rank alone has no gradients, so what is settled about them reaches the others when they may be done already.
Scenario run_idle_rank(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = tiny_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  const Rank idle = static_cast<Rank>(seed % static_cast<std::uint64_t>(api.size()));
  for (int s = 0; s < steps; ++s) {
    const auto salt = static_cast<std::uint64_t>(s) * 10;
    const std::string what = "step " + std::to_string(s);
    Step step = idle_step(api, spec, salt, idle);
    submit_step(api, *stream, step);
    require_ok(co_await api.wait_stream(*stream), what);
    step.check(salt, api.used(*stream), true, what);
  }
}

// As soon as a rank has the last step's result it closes the stream; what another asked for in that step reaches it
// behind that.
Scenario run_closed_at_once(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = tiny_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  const Rank idle = static_cast<Rank>(seed % static_cast<std::uint64_t>(api.size()));
  for (int s = 0; s <= steps; ++s) {
    const auto salt = static_cast<std::uint64_t>(s) * 10;
    const std::string what = "step " + std::to_string(s) + (s == steps ? ", the last" : "");
    Step step = s == steps ? idle_step(api, spec, salt, idle) : Step(api, spec, salt, seed, false);
    submit_step(api, *stream, step);
    require_ok(co_await api.wait_stream(*stream), what);
    step.check(salt, api.used(*stream), false, what);
  }
  require_ok(co_await api.close_stream(*stream), "closing");
  Owned metric = filled(api.rank(), 5, 10);
  require_ok(co_await api.run(allreduce("metric", metric)), "the metric behind the stream");
}

// What a rank asked for in a step reaches the others when that step was given up and the next attempt is on.
Scenario run_asked_in_a_void_step(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = tiny_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  const Rank idle = static_cast<Rank>(seed % static_cast<std::uint64_t>(api.size()));
  const Rank culprit = (idle + 1) % api.size();
  const int void_step = static_cast<int>(seed % 3);
  for (int s = 0; s < steps; ++s) {
    const auto salt = static_cast<std::uint64_t>(s) * 10;
    const std::string what = "step " + std::to_string(s);
    Step step = s < void_step ? Step(api, spec, salt, seed, false) : idle_step(api, spec, salt, idle);
    // Behind the void step all make haste: the step is over before the message is there.
    const auto work = std::chrono::microseconds(s <= void_step ? api.random()() % 1000 : 0);
    require_ok(co_await api.compute(work), "computing");
    if (s == void_step && api.rank() == culprit) {
      api.ready(*stream, 0, step.tensors[0].view(), api.rank() == idle);
      require_ok(co_await api.abort_stream(*stream, "out of memory"), what + ", aborting");
      continue;
    }
    submit_step(api, *stream, step);
    const Status status = co_await api.wait_stream(*stream);
    require(status.code() == (s == void_step ? Code::kAborted : Code::kOk), what + ": got " + status.to_string());
    if (status) {
      step.check(salt, api.used(*stream), false, what);
    }
  }
}

Scenario run_everything(RankApi& api, std::uint64_t seed, int steps) {
  const engine::StreamSpec spec = make_spec(seed);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (int s = 0; s < steps; ++s) {
    const auto place = static_cast<std::uint64_t>(s);
    const auto salt = place * 10;
    const std::string what = "step " + std::to_string(s);
    Step step(api, spec, salt, seed, shared_draw(seed, 7, 7) % 2 == 0);
    Owned early = filled(api.rank(), salt, 11);
    Owned late = filled(api.rank(), salt, 3000);
    const std::uint64_t first = api.submit(allreduce("metric", early));
    if (api.random()() % 8 == 0) {
      require_ok(co_await api.compute(std::chrono::seconds(api.random()() % 5)), "a stall");
    }
    submit_step(api, *stream, step);
    const std::uint64_t second = api.submit(allreduce("urgent" + std::to_string(s % 2), late));
    if (api.random()() % 2 == 0) {
      require_ok(co_await api.wait(first), what + ", metric");
    }
    require_ok(co_await api.wait_stream(*stream), what);
    require_ok(co_await api.wait(second), what + ", urgent");
    require_ok(co_await api.wait(first), what + ", metric");
    require_sum(early, everybody(api.size()), salt, what + ", metric");
    require_sum(late, everybody(api.size()), salt, what + ", urgent");
    step.check(salt, api.used(*stream), false, what);
  }
}

}  // namespace

ScenarioFn stream_steps(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_steps(api, seed, steps, false); };
}
ScenarioFn stream_unused(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_steps(api, seed, steps, true); };
}
ScenarioFn stream_idle_rank(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_idle_rank(api, seed, steps); };
}
ScenarioFn stream_closed_at_once(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_closed_at_once(api, seed, steps); };
}
ScenarioFn stream_asked_in_a_void_step(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_asked_in_a_void_step(api, seed, steps); };
}
ScenarioFn stream_deviations(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_deviations(api, seed, steps); };
}
ScenarioFn stream_forward(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_forward(api, seed, steps); };
}
ScenarioFn stream_replanned(std::uint64_t seed, int steps, GiveUpAt at) {
  return [=](RankApi& api) { return run_replanned(api, seed, steps, at); };
}
ScenarioFn stream_woken(bool closes) {
  return [=](RankApi& api) { return run_woken(api, closes); };
}
ScenarioFn stream_dying(int steps) {
  return [=](RankApi& api) { return run_dying(api, steps); };
}
ScenarioFn everything(std::uint64_t seed, int steps) {
  return [=](RankApi& api) { return run_everything(api, seed, steps); };
}

}  // namespace sirtaki::scenarios
