// Streams with compressed tensors: no scenario can predict a result, but all ranks must have the same.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/stream_support.h"
#include "tests/scenarios/support.h"

namespace sirtaki::scenarios {
namespace {

// Compares results among the ranks of a run, which may be threads: keeps those of the first rank that has them.
class Results {
 public:
  void expect_same(int step, std::uint64_t digest, const std::string& what) {
    const std::lock_guard lock(mutex_);
    const auto [it, first] = digests_.try_emplace(step, digest);
    require(it->second == digest, what + ": ranks have different results");
  }

 private:
  std::mutex mutex_;
  std::map<int, std::uint64_t> digests_;
};

std::uint64_t digest_of(const std::vector<Owned>& tensors) {
  std::uint64_t digest = 1469598103934665603ULL;
  for (const Owned& tensor : tensors) {
    for (const float value : tensor.values) {
      digest = (digest ^ std::bit_cast<std::uint32_t>(value)) * 1099511628211ULL;
    }
  }
  return digest;
}

engine::StreamSpec compressed_spec(std::uint64_t seed, const std::string& codec, bool tiny) {
  engine::StreamSpec spec;
  spec.name = "optimizer";
  spec.reduce_op = seed % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAverage;
  spec.codec = codec;
  const std::int64_t columns[] = {1, 5, 40, 300, 1300, 5000};
  const int count = tiny ? 4 : kTensors;
  for (int i = 0; i < count; ++i) {
    engine::StreamTensor tensor;
    tensor.name = "layer" + std::to_string(i);
    const std::uint64_t draw = shared_draw(seed, static_cast<std::uint64_t>(i), 22);
    tensor.dims = {8, columns[draw % (tiny ? 3 : 6)]};
    spec.tensors.push_back(std::move(tensor));
  }
  return spec;
}

std::vector<Owned> gradients(RankApi& api, const engine::StreamSpec& spec) {
  std::vector<Owned> tensors;
  for (const engine::StreamTensor& tensor : spec.tensors) {
    Owned& owned = tensors.emplace_back();
    owned.values.resize(static_cast<std::size_t>(tensor.dims[0] * tensor.dims[1]));
    for (float& value : owned.values) {
      value = static_cast<float>(static_cast<int>(api.random()() % 4001) - 2000) * 0.001F;
    }
  }
  return tensors;
}

Turn turn_of(std::uint64_t seed, int step, bool wild) {
  const std::uint64_t draw = shared_draw(seed, static_cast<std::uint64_t>(step), 33) % 6;
  return !wild || draw > 1 ? Turn::kGood : draw == 0 ? Turn::kAborted : Turn::kWrongSize;
}

void submit(RankApi& api, StreamId stream, std::vector<Owned>& tensors) {
  for (const int t : shuffled(static_cast<int>(tensors.size()), api.random())) {
    api.ready(stream, t, tensors[static_cast<std::size_t>(t)].view(), false);
  }
  api.finish(stream);
}

Scenario run_compressed(RankApi& api, CompressedRun run, std::shared_ptr<Results> results) {
  const engine::StreamSpec spec = compressed_spec(run.seed, run.codec, run.tiny);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (int s = 0; s < run.steps; ++s) {
    const std::string what = "step " + std::to_string(s);
    api.report_loss(*stream, 0.5 + api.rank());
    const Turn turn = turn_of(run.seed, s, run.wild);
    const auto culprit = static_cast<Rank>(shared_draw(run.seed, static_cast<std::uint64_t>(s), 34) %
                                           static_cast<std::uint64_t>(api.size()));
    std::vector<Owned> tensors = gradients(api, spec);
    if (run.wild) {
      const auto pause = std::chrono::microseconds(api.random()() % 8 == 0 ? 2'000'000 : api.random()() % 3000);
      require_ok(co_await api.compute(pause), "computing");
    }
    if (turn == Turn::kGood || api.rank() != culprit) {
      submit(api, *stream, tensors);
    } else {
      for (std::size_t t = tensors.size(); t-- > tensors.size() / 2;) {
        api.ready(*stream, static_cast<int>(t), tensors[t].view(), false);
      }
      if (turn == Turn::kAborted) {
        require_ok(co_await api.abort_stream(*stream, "out of memory"), what + ", aborting");
        continue;
      }
      TensorView view = tensors[0].view();
      view.numel += 1;  // the engine refuses the tensor without touching it
      api.ready(*stream, 0, view, false);
    }
    const Status status = co_await api.wait_stream(*stream);
    const Code expected = turn == Turn::kGood ? Code::kOk : turn == Turn::kAborted ? Code::kAborted : Code::kMismatch;
    require(status.code() == expected, what + ": got " + status.to_string());
    if (status.ok()) {
      results->expect_same(s, digest_of(tensors), what);
    }
  }
}

// Returns an allreduce of sums; exact for small integers.
engine::OpSpec sum_of(Owned& tensor) {
  engine::OpSpec spec = allreduce("balance", tensor);
  spec.reduce_op = ReduceOp::kSum;
  return spec;
}

Scenario run_balance(RankApi& api, CompressedRun run) {
  engine::StreamSpec spec = compressed_spec(run.seed, run.codec, run.tiny);
  spec.reduce_op = ReduceOp::kSum;
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  std::vector<Owned> given = gradients(api, spec);
  std::vector<Owned> received = given;
  for (std::size_t t = 0; t < given.size(); ++t) {
    std::fill(given[t].values.begin(), given[t].values.end(), 0.0F);
    received[t] = given[t];
  }
  for (int s = 0; s < run.steps; ++s) {
    const std::string what = "step " + std::to_string(s);
    api.report_loss(*stream, 0.5 + api.rank());
    std::vector<Owned> tensors = gradients(api, spec);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (std::size_t i = 0; i < tensors[t].values.size(); ++i) {
        tensors[t].values[i] = std::round(tensors[t].values[i] * 500);
        given[t].values[i] += tensors[t].values[i];
      }
    }
    submit(api, *stream, tensors);
    require_ok(co_await api.wait_stream(*stream), what);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      std::transform(received[t].values.begin(), received[t].values.end(), tensors[t].values.begin(),
                     received[t].values.begin(), std::plus<>());
    }
    if (s == run.steps / 2) {
      // A residual of other origin is sent like any other.
      Owned residual = given[0];
      require_ok(api.residual(*stream, 0, residual.values), what + ", reading the residual");
      for (std::size_t i = 0; i < residual.values.size(); ++i) {
        residual.values[i] += 3;
        given[0].values[i] += 3;
      }
      require_ok(api.set_residual(*stream, 0, residual.values), what + ", setting the residual");
    }
  }
  for (std::size_t t = 0; t < given.size(); ++t) {
    Owned sent = given[t];
    require_ok(api.residual(*stream, static_cast<int>(t), sent.values), "reading the residual");
    for (std::size_t i = 0; i < sent.values.size(); ++i) {
      sent.values[i] = given[t].values[i] - sent.values[i];
    }
    require_ok(co_await api.run(sum_of(sent)), "the balance");
    require(sent.values == received[t].values, "tensor " + std::to_string(t) + ": a part of the inputs is lost");
  }
}

Scenario run_poison(RankApi& api, CompressedRun run, std::shared_ptr<Results> results) {
  const engine::StreamSpec spec = compressed_spec(run.seed, run.codec, run.tiny);
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "opening the stream");
  for (int s = 0; s < run.steps; ++s) {
    const std::string what = "step " + std::to_string(s);
    const auto place = static_cast<std::uint64_t>(s);
    const bool bad = s % 2 == 1;
    const auto culprit = static_cast<Rank>(shared_draw(run.seed, place, 35) % static_cast<std::uint64_t>(api.size()));
    const std::size_t tensor = shared_draw(run.seed, place, 36) % spec.tensors.size();
    std::vector<Owned> tensors = gradients(api, spec);
    std::vector<float>& values = tensors[tensor].values;
    const std::size_t element = shared_draw(run.seed, place, 37) % values.size();
    if (bad && api.rank() == culprit) {
      values[element] = s % 4 == 1 ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
    }
    submit(api, *stream, tensors);
    const Status status = co_await api.wait_stream(*stream);
    if (bad && run.finite_only) {
      require(status.code() == Code::kNonFinite, what + ": got " + status.to_string());
      require(status.blame().tensor == spec.tensors[tensor].name && status.blame().rank == culprit,
              what + ": the error does not name tensor and rank: " + status.to_string());
      continue;
    }
    require_ok(status, what);
    require(!bad || !std::isfinite(values[element]), what + ": the result is finite");
    results->expect_same(s, digest_of(tensors), what);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::vector<float>& others = tensors[t].values;
      require(
          (bad && t == tensor) || std::all_of(others.begin(), others.end(), [](float v) { return std::isfinite(v); }),
          what + ": tensor " + std::to_string(t) + " is not finite");
    }
  }
}

}  // namespace

ScenarioFn compressed_steps(const CompressedRun& run) {
  return [run, results = std::make_shared<Results>()](RankApi& api) { return run_compressed(api, run, results); };
}

ScenarioFn compressed_balance(const CompressedRun& run) {
  return [run](RankApi& api) { return run_balance(api, run); };
}
ScenarioFn compressed_poison(const CompressedRun& run) {
  return [run, results = std::make_shared<Results>()](RankApi& api) { return run_poison(api, run, results); };
}

}  // namespace sirtaki::scenarios
