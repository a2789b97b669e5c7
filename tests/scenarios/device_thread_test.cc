// Tensors on a fake GPU, staged through host memory and over a fake NCCL: the scenarios of threads, and equality with
// the bits of a CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "tests/scenarios/compressed_cases.h"
#include "tests/scenarios/device_cases.h"
#include "tests/scenarios/support.h"
#include "tests/world/thread_world.h"

namespace sirtaki::scenarios {
namespace {

class DeviceThreads : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  static int ranks() { return std::get<0>(GetParam()); }
  static bool nccl() { return std::get<1>(GetParam()); }
  static world::ThreadOptions options(std::uint64_t seed, const std::string& more = {}) {
    world::ThreadOptions options;
    options.seed = seed;
    options.size = ranks();
    options.options_toml = kSmall + more;
    options.on_device = true;
    options.nccl = nccl();
    return options;
  }
  static void expect_well(const ScenarioFn& scenario, std::uint64_t seed = 1, const std::string& more = {}) {
    EXPECT_EQ(world::run_threads(options(seed, more), scenario), "");
  }
};

TEST_P(DeviceThreads, OperationsByName) {
  expect_well(named_operations(1, 5));
  expect_well(process_sets(13, 3), 13);
  expect_well(changing_shapes(2, 20));
  expect_well(broadcast_ahead(12, 6), 12);
}
TEST_P(DeviceThreads, StreamSteps) {
  expect_well(stream_steps(3, 8), 3);
  expect_well(stream_of_a_set(15, 10), 15);
  expect_well(stream_forward(6, 10), 6);
}
TEST_P(DeviceThreads, TensorsWithoutAGradient) {
  expect_well(stream_unused(4, 6), 4);
  expect_well(stream_closed_at_once(10, 2), 10);
}
TEST_P(DeviceThreads, StepsThatAreGivenUp) {
  expect_well(stream_deviations(5, 10), 5);
  if (ranks() > 1) {
    expect_well(stream_asked_in_a_void_step(11, 5), 11);
    expect_well(stream_dying(2));
  }
}
TEST_P(DeviceThreads, RanksThatDifferGetAnError) {
  if (ranks() > 1) {
    expect_well(mismatch_and_recover(8, 2));
    expect_well(stuck_and_recover());
    expect_well(dying_rank(3));
    expect_well(leaving_rank(3));
  }
}
TEST_P(DeviceThreads, RanksWithoutMoreData) {
  expect_well(uneven_epochs(9, 4), 9);
  if (ranks() > 1) {
    expect_well(names_while_joined(10));
    expect_well(gone_while_joined(2, true));
  }
}
TEST_P(DeviceThreads, Everything) {
  expect_well(everything(6, 6), 6);
}
TEST_P(DeviceThreads, Compressed) {
  for (std::uint64_t seed = 1; seed <= std::size(kCodecs); seed += world::kSanitized ? 2 : 1) {
    CompressedRun run = run_of(seed, 4);
    run.wild = true;
    expect_well(compressed_steps(run), seed);
  }
  expect_well(compressed_balance(run_of(1, 5)), 1);
}

TEST_P(DeviceThreads, EncodedOnTheGpu) {
  expect_codes_well([](const ScenarioFn& scenario, std::uint64_t seed) { expect_well(scenario, seed); });
}

// A checkpoint may restore residuals of tensors that are never compressed.
TEST_P(DeviceThreads, ResidualsOfTensorsThatAreNotEncodedAreSent) {
  for (const char* codec : {"none", "layer1=>int8:min=0,ndim=0,wire=gather"}) {
    CompressedRun run = run_of(2, 6);
    run.codec = codec;
    expect_well(compressed_balance(run), 2);
  }
}

// The codecs keep every element, so that sums are those of dense streams.
TEST_P(DeviceThreads, ScenariosOfAStreamEncodedOnTheGpu) {
  for (const char* method : {"group_topk:rate=1,group=64", "threshold_sparse:density=1,reestimate=3"}) {
    const bool sparse = std::string_view(method).starts_with("threshold");
    if (world::kSanitized && sparse != (ranks() == 2)) {
      continue;
    }
    const std::string codec = "compression.codec = \"" + std::string(method) + ",min=0,ndim=0,wire=gather\"\n";
    world::ThreadOptions chosen = options(3, codec);
    chosen.stats = [](Rank rank, const std::string& json) {
      EXPECT_EQ(json.find("\"device.encoded_bytes\":0"), std::string::npos) << rank;
    };
    EXPECT_EQ(world::run_threads(chosen, stream_steps(3, 8)), "");
    expect_well(stream_forward(6, 10), 6, codec);
    expect_well(stream_unused(4, 6), 4, codec);
    expect_well(stream_closed_at_once(10, 2), 10, codec);
    expect_well(stream_deviations(5, 10), 5, codec);
    expect_well(uneven_epochs(9, 4), 9, codec);
    if (ranks() > 1) {
      expect_well(stream_asked_in_a_void_step(11, 5), 11, codec);
      expect_well(stream_dying(2), 1, codec);
      expect_well(gone_while_joined(2, true), 1, codec);
    }
  }
}

// Opens two streams, and then makes their steps in turn.
Scenario two_streams(RankApi& api) {
  constexpr std::size_t kSizes[] = {3000, 64, 700};
  std::vector<StreamId> streams;
  for (const char* codec : {"weight0=>group_topk:min=0,ndim=0,wire=gather", kTwobit}) {
    engine::StreamSpec spec;
    spec.name = codec;
    spec.codec = codec;
    for (const std::size_t size : kSizes) {
      engine::StreamTensor tensor;
      tensor.name = "weight" + std::to_string(spec.tensors.size());
      tensor.dims = {static_cast<std::int64_t>(size)};
      spec.tensors.push_back(tensor);
    }
    const Result<StreamId> stream = co_await api.open_stream(spec);
    require_ok(stream.status(), "open");
    streams.push_back(*stream);
  }
  for (int step = 0; step < 6; ++step) {
    const StreamId stream = streams[static_cast<std::size_t>(step % 2)];
    std::vector<Owned> gradients;
    for (const std::size_t size : kSizes) {
      gradients.push_back(filled(api.rank(), step, size));
    }
    for (int i = 0; i < 3; ++i) {
      api.ready(stream, i, gradients[static_cast<std::size_t>(i)].view(), false);
    }
    api.finish(stream);
    require_ok(co_await api.wait_stream(stream), "a step");
  }
}

// Memory that a stream keeps is none that reductions, of this stream or of another one, count on.
TEST_P(DeviceThreads, StepsOfTwoStreamsAllocateNothing) {
  world::ThreadOptions chosen = options(7);
  chosen.expect_steady_memory = true;
  EXPECT_EQ(world::run_threads(chosen, two_streams), "");
}

TEST_P(DeviceThreads, APolicyThatStaysDenseIsOverNccl) {
  if (ranks() > 1 && nccl()) {
    world::ThreadOptions chosen = options(1);
    chosen.stats = [](Rank /*rank*/, const std::string& json) {
      EXPECT_EQ(json.find("\"device.nccl_bytes\":0"), std::string::npos) << json;
      EXPECT_NE(json.find("\"device.fetched_bytes\":0"), std::string::npos) << json;
    };
    EXPECT_EQ(world::run_threads(chosen, [](RankApi& api) { return three_steps(api, "auto"); }), "");
  }
}

TEST_P(DeviceThreads, WithoutMemoryOnOneGpuAllRanksUseTheHost) {
  world::ThreadOptions chosen = options(1, "log.level = \"error\"\n");
  chosen.short_rank = ranks() - 1;
  EXPECT_EQ(encoded_bytes(chosen, kTopk), std::vector(static_cast<std::size_t>(ranks()), std::uint64_t{0}));
  EXPECT_EQ(world::run_threads(chosen, stream_steps(3, 8)), "");
}

TEST_P(DeviceThreads, StatisticsCountBytesEncodedOnTheGpu) {
  const auto every = [](std::uint64_t bytes) { return std::vector(static_cast<std::size_t>(ranks()), bytes); };
  EXPECT_EQ(encoded_bytes(options(1), kTopk), every(1200));
  EXPECT_EQ(encoded_bytes(options(1, "device.codecs = \"host\"\n"), kTopk), every(0));
  EXPECT_EQ(encoded_bytes(options(1, "device.data = \"host\"\n"), kTopk), every(1200));
  // A policy may choose another codec, and momentum and statistics of gradients live on the CPU: these codecs encode
  // there.
  EXPECT_EQ(encoded_bytes(options(1), "group_topk:min=0,ndim=0"), every(0));
  EXPECT_EQ(encoded_bytes(options(1), "group_topk:min=0,ndim=0,wire=gather,momentum=0.9"), every(0));
  EXPECT_EQ(encoded_bytes(options(1, "compression.nonfinite = \"skip\"\n"), kTopk), every(0));
}

// ---- on some ranks only ----

Scenario differ(RankApi& api) {
  Owned tensor = filled(api.rank(), 1, 100);
  const Status status = co_await api.run(allreduce("moved", tensor));
  require(status.code() == Code::kMismatch, "an allreduce: " + status.to_string());
  require(status.to_string().find("GPU") != std::string::npos, "the device is named: " + status.to_string());
  const Status opened = (co_await api.open_stream(one_weight("moved"))).status();
  require(opened.code() == Code::kMismatch, "a stream: " + opened.to_string());
  require(opened.to_string().find("GPU") != std::string::npos, "the device is named: " + opened.to_string());
}

TEST_P(DeviceThreads, CpuAndGpuUnderOneNameAreAMismatch) {
  if (ranks() > 1) {
    world::ThreadOptions mixed = options(1);
    mixed.cpu_rank = 0;
    EXPECT_EQ(world::run_threads(mixed, differ), "");
  }
}

// ---- a lost GPU ----

Scenario lose_in_operations(RankApi& api) {
  Owned tensor = filled(api.rank(), 1, 100);
  require_lost(co_await api.run(allreduce("gradient", tensor)), "an allreduce");
  require_lost(co_await api.run(allreduce("next", tensor)), "what comes later");
}

Scenario lose_in_a_step(RankApi& api) {
  const Result<StreamId> stream = co_await api.open_stream(one_weight("training"));
  if (!stream) {
    require_lost(stream.status(), "open, which allocates memory of the GPU");
    co_return;
  }
  Owned tensor = filled(api.rank(), 1, 100);
  api.ready(*stream, 0, tensor.view(), false);
  api.finish(*stream);
  require_lost(co_await api.wait_stream(*stream), "a step");
}

TEST_P(DeviceThreads, ALostGpuEndsTheJobOnAllRanks) {
  if (ranks() > 1) {
    for (const std::string more : {"", "control.fanout = 2\n"}) {
      world::ThreadOptions lost = options(1, more);
      lost.broken_rank = 1;
      EXPECT_EQ(world::run_threads(lost, lose_in_operations), "");
      EXPECT_EQ(world::run_threads(lost, lose_in_a_step), "");
      EXPECT_EQ(world::run_threads(lost, lose_while_encoding), "");
    }
  }
}

// ---- the same bits ----

TEST_P(DeviceThreads, ResultsHaveTheBitsOfTheCpu) {
  // The fake NCCL adds halves as the CPU does.
  for (const char* codec : {"none", "fp16", "int8:min=0,ndim=0", "twobit:min=0,ndim=0", "group_topk:min=0,ndim=0",
                            "int8:min=0,ndim=0,wire=gather", "fp8_e4m3:min=0,ndim=0,wire=gather,ef=off", kTopk,
                            "group_topk:min=0,ndim=0,wire=gather,rate=5%,values=f16,warmup=3", kTwobit, kThreshold,
                            "weight0=>group_topk:min=0,ndim=0,wire=gather;weight3=>int8:min=0,ndim=0,wire=gather"}) {
    Results results[2];
    for (const bool on_device : {false, true}) {
      std::mutex mutex;
      world::ThreadOptions chosen = options(5);
      chosen.on_device = on_device;
      const bool encodes = on_device && std::string_view(codec).find("wire=gather") != std::string_view::npos;
      chosen.expect_steady_memory = encodes;
      chosen.stats = [&](Rank /*rank*/, const std::string& json) {
        EXPECT_EQ(json.find("\"device.encoded_bytes\":0") == std::string::npos && on_device, encodes) << codec;
      };
      const auto scenario = [&](RankApi& api) { return train(api, codec, results[on_device ? 1 : 0], mutex); };
      EXPECT_EQ(world::run_threads(chosen, scenario), "") << codec;
    }
    EXPECT_EQ(results[0].size(), static_cast<std::size_t>(ranks()));
    EXPECT_TRUE(results[0] == results[1]) << codec;
  }
}

// ---- over NCCL ----

// Streams of one codec and operations by name, both in an order of the rank's own.
Scenario mix(RankApi& api) {
  constexpr int kStreams = 3;
  constexpr int kSteps = 6;
  std::vector<StreamId> streams;
  std::vector<std::vector<Owned>> gradients(kStreams);
  for (int s = 0; s < kStreams; ++s) {
    engine::StreamSpec spec;
    spec.name = "training" + std::to_string(s);
    for (const std::size_t size : {std::size_t{3000}, std::size_t{64}, std::size_t{1}, std::size_t{700}}) {
      engine::StreamTensor tensor;
      tensor.name = "weight" + std::to_string(spec.tensors.size());
      tensor.dims = {static_cast<std::int64_t>(size)};
      spec.tensors.push_back(tensor);
      gradients[static_cast<std::size_t>(s)].push_back(filled(0, 1, size));
    }
    const Result<StreamId> stream = co_await api.open_stream(spec);
    require_ok(stream.status(), "open");
    streams.push_back(*stream);
  }
  std::vector<Owned> named;
  for (int i = 0; i < 4; ++i) {
    named.push_back(filled(0, 1, 2500));
  }
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kStreams; ++i) {
      const auto s = static_cast<std::size_t>((i + api.rank() * 2 + step) % kStreams);
      for (std::size_t t = gradients[s].size(); t-- > 0;) {
        std::ranges::fill(gradients[s][t].values, static_cast<float>(api.rank() + step + 10 * static_cast<int>(s)));
        api.ready(streams[s], static_cast<int>(t), gradients[s][t].view(), false);
      }
      api.finish(streams[s]);
    }
    std::vector<std::uint64_t> requests;
    for (int i = 0; i < 4; ++i) {
      const int n = (i + 3 * api.rank()) % 4;
      std::ranges::fill(named[static_cast<std::size_t>(n)].values, static_cast<float>(api.rank() + n));
      requests.push_back(api.submit(allreduce("op" + std::to_string(n), named[static_cast<std::size_t>(n)])));
    }
    for (const std::uint64_t request : requests) {
      require_ok(co_await api.wait(request), "an operation");
    }
    const auto ranks = static_cast<float>(api.size());
    const float mean = (ranks - 1) / 2;
    for (int n = 0; n < 4; ++n) {
      require(named[static_cast<std::size_t>(n)].values.back() == ranks * (mean + static_cast<float>(n)), "the sum");
    }
    for (std::size_t s = kStreams; s-- > 0;) {
      require_ok(co_await api.wait_stream(streams[s]), "a step");
      for (const Owned& gradient : gradients[s]) {
        require(gradient.values.front() == mean + static_cast<float>(step + 10 * static_cast<int>(s)), "the average");
      }
    }
  }
}

TEST_P(DeviceThreads, StreamsAndOperationsInAnyOrder) {
  std::mutex mutex;
  std::vector<std::string> seen;
  world::ThreadOptions chosen = options(7);
  chosen.expect_no_leaks = true;
  chosen.stats = [&](Rank /*rank*/, const std::string& json) {
    const std::lock_guard lock(mutex);
    seen.push_back(json);
  };
  EXPECT_EQ(world::run_threads(chosen, mix), "");
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(ranks()));
  for (const std::string& json : seen) {
    const bool over_nccl = nccl() && ranks() > 1;
    EXPECT_NE(json.find(over_nccl ? "\"device.data\":\"nccl\"" : "\"device.data\":\"host\""), std::string::npos)
        << json;
    EXPECT_EQ(json.find("\"device.nccl_bytes\":0") == std::string::npos, over_nccl) << json;
    EXPECT_EQ(json.find("\"device.fetched_bytes\":0") != std::string::npos, over_nccl) << json;
  }
}

TEST_P(DeviceThreads, ARankWithoutNcclBringsAllToTheHostsMemory) {
  if (ranks() > 1 && nccl()) {
    world::ThreadOptions chosen = options(8, "log.level = \"error\"\n");
    chosen.rank_without_nccl = 1;
    chosen.stats = [](Rank rank, const std::string& json) {
      EXPECT_NE(json.find("\"device.data\":\"host\""), std::string::npos) << rank << json;
    };
    EXPECT_EQ(world::run_threads(chosen, mix), "");
    EXPECT_EQ(world::run_threads(chosen, stream_steps(8, 4)), "");
  }
}

TEST_P(DeviceThreads, ACommunicatorThatCannotBeMadeBringsAllToTheHostsMemory) {
  if (ranks() == 2 && nccl()) {
    world::ThreadOptions chosen = options(12, "log.level = \"error\"\ncontrol.connect_timeout = \"1s\"\n");
    chosen.nccl_error_rank = 1;
    chosen.nccl_error_after = 0;
    chosen.stats = [](Rank rank, const std::string& json) {
      EXPECT_NE(json.find("\"device.data\":\"host\""), std::string::npos) << rank << json;
    };
    EXPECT_EQ(world::run_threads(chosen, mix), "");
  }
}

Scenario refuse(RankApi& api) {
  constexpr const char* kWhy = "device.data = nccl: rank 1: there is no NCCL here";
  Owned tensor = filled(api.rank(), 1, 100);
  const Status status = co_await api.run(allreduce("gradient", tensor));
  require(status.text().ends_with(kWhy) && status.blame().rank == 1, "an allreduce: " + status.to_string());
  const Status opened = (co_await api.open_stream(one_weight("training"))).status();
  require(opened.text().ends_with(kWhy), "a stream: " + opened.to_string());
}

TEST_P(DeviceThreads, ARankWithoutNcclIsAnErrorWhereItIsDemanded) {
  if (ranks() > 1 && nccl()) {
    world::ThreadOptions chosen = options(9, "device.data = \"nccl\"\n");
    chosen.rank_without_nccl = 1;
    EXPECT_EQ(world::run_threads(chosen, refuse), "");
    chosen.rank_without_nccl = -1;
    EXPECT_EQ(world::run_threads(chosen, mix), "");
  }
}

Scenario refuse_library(RankApi& api) {
  Owned tensor = filled(api.rank(), 1, 100);
  const Status status = co_await api.run(allreduce("gradient", tensor));
  require(status.text().find("/nowhere/libnccl.so.2 cannot be loaded") != std::string_view::npos, status.to_string());
}

TEST_P(DeviceThreads, TheLibraryOfTheOptionsIsNamed) {
  if (ranks() > 1 && !nccl()) {
    EXPECT_EQ(
        world::run_threads(options(1, "device.data = \"nccl\"\ndevice.nccl_library = \"/nowhere/libnccl.so.2\"\n"),
                           refuse_library),
        "");
  }
}

Scenario break_nccl(RankApi& api) {
  const Result<StreamId> stream = co_await api.open_stream(one_weight("training"));
  require_ok(stream.status(), "open");
  Owned tensor = filled(api.rank(), 1, 100);
  Status status;
  for (int step = 0; step < 20 && status.ok(); ++step) {
    api.ready(*stream, 0, tensor.view(), false);
    api.finish(*stream);
    status = co_await api.wait_stream(*stream);
  }
  require(status.text().find("NCCL has failed on rank 1") != std::string_view::npos && status.blame().rank == 1,
          "the step: " + status.to_string());
  const Status later = co_await api.run(allreduce("next", tensor));
  require(later.text().find("NCCL has failed on rank 1") != std::string_view::npos, "later: " + later.to_string());
}

TEST_P(DeviceThreads, AnErrorOfNcclEndsTheJobOnAllRanks) {
  if (ranks() > 1 && nccl()) {
    world::ThreadOptions chosen = options(10);
    chosen.nccl_error_rank = 1;
    EXPECT_EQ(world::run_threads(chosen, break_nccl), "");
  }
}

engine::OpSpec reduce_scatter(const std::string& name, Owned& tensor, Owned* rows) {
  engine::OpSpec spec = allreduce(name, tensor);
  spec.kind = OpKind::kReduceScatter;
  spec.output = rows == nullptr || rows->values.empty() ? TensorView() : rows->view();
  return spec;
}

Scenario scatter(RankApi& api) {
  const auto size = static_cast<std::size_t>(api.size());
  const auto me = static_cast<std::size_t>(api.rank());
  Owned tensor = filled(api.rank(), 1, 2 * size);
  Owned large = filled(api.rank(), 1, 3);
  Owned fitting = filled(api.rank(), 1, 2);
  const Status refused = co_await api.run(reduce_scatter("wrong", tensor, me == 0 ? &large : &fitting));
  require(refused.code() == Code::kInvalidArgument, "an output of another size: " + refused.to_string());
  for (std::size_t use = 0; use < 12; ++use) {
    const std::size_t count = std::array{4 * size, 4 * size + 1, std::size_t{1}}[use % 3];
    tensor = filled(api.rank(), use, count);
    const std::size_t begin = me * (count / size) + std::min(me, count % size);
    Owned rows;
    rows.values.resize(count / size + (me < count % size ? 1 : 0));
    require_ok(co_await api.run(reduce_scatter("scatter" + std::to_string(count), tensor, &rows)), "a reduce-scatter");
    for (std::size_t i = 0; i < rows.values.size(); ++i) {
      require(rows.values[i] == sum_over(std::vector<bool>(size, true), use, begin + i), "the sum");
    }
  }
}

TEST_P(DeviceThreads, ReduceScatterGoesOverNccl) {
  world::ThreadOptions chosen = options(12);
  chosen.expect_no_leaks = true;
  chosen.stats = [](Rank rank, const std::string& json) {
    const bool over_nccl = nccl() && ranks() > 1;
    EXPECT_EQ(json.find("\"device.nccl_bytes\":0") == std::string::npos, over_nccl) << rank << json;
  };
  EXPECT_EQ(world::run_threads(chosen, scatter), "");
}

// An allocation during training may wait for kernels of NCCL that wait for other ranks.
Scenario scatter_without_output(RankApi& api) {
  Owned tensor = filled(api.rank(), 1, 100 * static_cast<std::size_t>(api.size()));
  engine::OpSpec spec = reduce_scatter("rows", tensor, nullptr);
  spec.input.device = {DeviceType::kCuda, 0};
  const Status status = co_await api.wait(api.submit_on_host(std::move(spec)));  // submit() would give it memory
  require(status.code() == Code::kInvalidArgument &&
              status.text().find("'rows' on rank " + std::to_string(api.rank()) +
                                 ": the runtime allocates no results on a GPU; give an output of 100 elements") !=
                  std::string_view::npos,
          "a reduce-scatter: " + status.to_string());
  require_ok(co_await api.run(allreduce("next", tensor)), "the next operation");
}

TEST_P(DeviceThreads, AReduceScatterNeedsMemoryForItsResult) {
  EXPECT_EQ(world::run_threads(options(13), scatter_without_output), "");
}

std::vector<std::tuple<int, bool>> worlds() {
  std::vector<std::tuple<int, bool>> all{{2, true}, {3, false}};
  if (!world::kSanitized) {
    all.insert(all.end(), {{1, false}, {3, true}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceThreads, testing::ValuesIn(worlds()));

}  // namespace
}  // namespace sirtaki::scenarios
