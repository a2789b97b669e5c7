// Cases of streams on fake GPUs, on one host and on several.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/scenarios/compressed_cases.h"
#include "tests/scenarios/scenarios.h"
#include "tests/scenarios/support.h"
#include "tests/world/seeds.h"
#include "tests/world/thread_world.h"

namespace sirtaki::scenarios {

inline constexpr const char* kSmall =
    "schedule.fusion_bytes = \"4KiB\"\nschedule.partition_bytes = \"8KiB\"\nschedule.credit_bytes = \"64KiB\"\n"
    "device.nccl_partition_bytes = \"8KiB\"\ndevice.nccl_credit_bytes = \"64KiB\"\n"
    "net.eager_bytes = \"2KiB\"\nnet.exchange_bytes = \"1KiB\"\nnet.fragment_bytes = \"4KiB\"\n";

// Encoded on the GPU.
inline constexpr const char* kTopk = "group_topk:min=0,ndim=0,wire=gather";
inline constexpr const char* kTwobit = "twobit:min=0,ndim=0,wire=gather";
inline constexpr const char* kThreshold = "threshold_sparse:min=0,ndim=0,wire=gather,density=5%,reestimate=2";

// Ranks on fake GPUs with a fake NCCL.
inline world::ThreadOptions on_fake_gpus(int size, std::uint64_t seed) {
  world::ThreadOptions options;
  options.seed = seed;
  options.size = size;
  options.options_toml = kSmall;
  options.on_device = true;
  options.nccl = true;
  return options;
}

inline engine::StreamSpec one_weight(const std::string& name) {
  engine::StreamSpec spec;
  spec.name = name;
  engine::StreamTensor weight;
  weight.name = "weight";
  weight.dims = {100};
  spec.tensors.push_back(weight);
  return spec;
}

inline Scenario three_steps(RankApi& api, const char* codec) {
  engine::StreamSpec spec = one_weight("training");
  spec.codec = codec;
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "open");
  for (int step = 0; step < 3; ++step) {
    Owned tensor = filled(api.rank(), 1, 100);
    api.ready(*stream, 0, tensor.view(), false);
    api.finish(*stream);
    require_ok(co_await api.wait_stream(*stream), "a step");
  }
}

// Returns the bytes of gradients encoded on each rank's GPU, after three steps of four hundred bytes.
inline std::vector<std::uint64_t> encoded_bytes(world::ThreadOptions chosen, const char* codec) {
  std::mutex mutex;
  std::vector<std::uint64_t> bytes;
  chosen.expect_no_leaks = true;
  chosen.expect_steady_memory = true;
  chosen.stats = [&](Rank /*rank*/, const std::string& json) {
    constexpr std::string_view kKey = "\"device.encoded_bytes\":";
    const std::size_t at = json.find(kKey);
    const std::lock_guard lock(mutex);
    bytes.push_back(at == std::string::npos ? 0 : std::stoull(json.substr(at + kKey.size())));
  };
  EXPECT_EQ(world::run_threads(chosen, [codec](RankApi& api) { return three_steps(api, codec); }), "") << codec;
  return bytes;
}

// Encoding on GPUs loses no part of a gradient and does not spread non-finite elements, and steps may be given up.
inline void expect_codes_well(const std::function<void(const ScenarioFn& scenario, std::uint64_t seed)>& expect_well) {
  std::vector<const char*> steady = {"layer0=>int8:min=0,ndim=0,wire=gather", kTwobit, kThreshold};
  std::vector<const char*> given_up = {kThreshold};
  if (!world::kSanitized) {
    steady.insert(steady.end(), {kTopk, "int8:min=0,ndim=0,wire=gather"});
    given_up.insert(given_up.end(), {kTopk, kTwobit});
  }
  std::uint64_t seed = 2;
  for (const char* codec : steady) {
    CompressedRun run = run_of(++seed, world::kSanitized ? 3 : 6);
    run.codec = codec;
    expect_well(compressed_balance(run), seed);
    expect_well(compressed_poison(run), seed);
  }
  for (const char* codec : given_up) {
    CompressedRun run = run_of(5, 6);
    run.codec = codec;
    run.wild = true;
    expect_well(compressed_steps(run), 5);
  }
}

// ---- a lost GPU ----

inline constexpr const char* kLost = "rank 1 has lost its GPU, cuda:0: an illegal address";

inline void require_lost(const Status& status, const std::string& what) {
  require(status.text().ends_with(kLost) && status.blame().rank == 1, what + ": " + status.to_string());
}

inline Scenario lose_while_encoding(RankApi& api) {
  engine::StreamSpec spec = one_weight("training");
  spec.codec = kTopk;
  const Result<StreamId> stream = co_await api.open_stream(spec);
  if (!stream) {
    require_lost(stream.status(), "opening a stream");
    co_return;
  }
  Owned tensor = filled(api.rank(), 1, 100);
  api.ready(*stream, 0, tensor.view(), false);
  api.finish(*stream);
  require_lost(co_await api.wait_stream(*stream), "a step");
  float residual[100];
  require(api.rank() != 1 || !api.residual(*stream, 0, residual).ok(), "the residual is lost with the GPU");
}

// ---- the same bits ----

using Results = std::map<Rank, std::vector<std::vector<float>>>;

// Trains several steps with gradients whose sums are all rounded.
inline Scenario train(RankApi& api, std::string codec, Results& results, std::mutex& mutex) {
  constexpr std::size_t kSizes[] = {3000, 64, 1, 700};
  engine::StreamSpec spec;
  spec.name = "training";
  spec.codec = std::move(codec);
  std::vector<Owned> gradients;
  for (const std::size_t size : kSizes) {
    engine::StreamTensor tensor;
    tensor.name = "weight" + std::to_string(spec.tensors.size());
    tensor.dims = {static_cast<std::int64_t>(size)};
    spec.tensors.push_back(tensor);
    gradients.push_back(filled(api.rank(), 1, size));
  }
  const Result<StreamId> stream = co_await api.open_stream(spec);
  require_ok(stream.status(), "open");
  for (int step = 0; step < 5; ++step) {
    for (int i = static_cast<int>(gradients.size()) - 1; i >= 0; --i) {
      Owned& gradient = gradients[static_cast<std::size_t>(i)];
      for (float& value : gradient.values) {
        value = static_cast<float>(api.random()() % 100003) / 77.0F - 600.0F;
      }
      api.ready(*stream, i, gradient.view(), false);
    }
    api.finish(*stream);
    require_ok(co_await api.wait_stream(*stream), "step");
    const std::lock_guard lock(mutex);
    for (const Owned& gradient : gradients) {
      results[api.rank()].push_back(gradient.values);
    }
  }
}

}  // namespace sirtaki::scenarios
