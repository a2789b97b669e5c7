// Streams whose tensors are waited for one by one, as in a forward pass.
#include <algorithm>

#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/stream_support.h"
#include "tests/scenarios/support.h"

namespace sirtaki::scenarios {
namespace {

// Checks the result of one tensor before the step is over.
void check_tensor(RankApi& api, StreamId stream, const Step& step, std::uint64_t salt, int t) {
  const auto i = static_cast<std::size_t>(t);
  const std::string name = "tensor " + std::to_string(t);
  require_sum(step.tensors[i], step.contributes[i], salt + i, name);
  const bool any = std::find(step.contributes[i].begin(), step.contributes[i].end(), true) != step.contributes[i].end();
  require((api.used(stream)[i] != 0) == any, name + ": wrong about who used it");
}

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
    require(recovered || s <= at.step + 1, what + ": no rank reported that a step was given up");
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
    for (int t = 0; t < kLayers && left != 0 && status.ok(); ++t, --left) {
      status = co_await api.wait_tensors(*stream, std::vector<int>(1, t));
      if (status.ok()) {
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
    require(status.ok() || status.code() == end.code(), what + ": " + status.to_string() + ", " + end.to_string());
    if (!end.ok()) {
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
    require(!status.ok(), "a tensor of a void step");
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
    for (int t = 0; t < kTensors && status.ok(); ++t) {
      status = co_await api.wait_tensors(*stream, std::vector<int>(1, t));
    }
    const Status end = co_await api.wait_stream(*stream);
    require(end.code() == status.code(), "received " + status.to_string() + ", then " + end.to_string());
    if (!status.ok()) {
      // Messages of the last rank for the step before may be lost with it.
      require(s >= steps - 1, "failed too early: " + status.to_string());
      require(status.text().find("rank " + std::to_string(last)) != std::string_view::npos,
              "the error does not name the rank: " + status.to_string());
      co_return;
    }
  }
}

}  // namespace

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

}  // namespace sirtaki::scenarios
