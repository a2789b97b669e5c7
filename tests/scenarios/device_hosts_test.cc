// Streams of fake GPUs on several hosts: GPUs that sum up over NCCL before they encode, and GPUs with policies.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <mutex>
#include <string>

#include "tests/scenarios/compressed_cases.h"
#include "tests/scenarios/device_cases.h"
#include "tests/world/seeds.h"

namespace sirtaki::scenarios {
namespace {

// Two ranks on each host; the last rank is alone on its host and exchanges both shares.
constexpr int kRanks = world::kSanitized ? 3 : 5;

world::ThreadOptions on_hosts(int ranks, std::uint64_t seed, const std::string& more = {}) {
  world::ThreadOptions options = on_fake_gpus(ranks, seed);
  options.ranks_per_host = 2;
  options.options_toml += more;
  return options;
}

void expect_well(const ScenarioFn& scenario, std::uint64_t seed = 1, const std::string& more = {}) {
  EXPECT_EQ(world::run_threads(on_hosts(kRanks, seed, more), scenario), "");
}

void expect_bits_of_the_cpu(int ranks, const char* codec) {
  Results results[2];
  for (const bool on_device : {false, true}) {
    std::mutex mutex;
    world::ThreadOptions chosen = on_hosts(ranks, 5);
    chosen.on_device = on_device;
    chosen.expect_steady_memory = true;
    chosen.stats = [&](Rank rank, const std::string& json) {
      for (const char* zero : {"\"device.encoded_bytes\":0", "\"device.nccl_bytes\":0"}) {
        EXPECT_EQ(json.find(zero) == std::string::npos && on_device, on_device) << codec << " on rank " << rank;
      }
    };
    const auto scenario = [&](RankApi& api) { return train(api, codec, results[on_device ? 1 : 0], mutex); };
    EXPECT_EQ(world::run_threads(chosen, scenario), "") << codec;
  }
  EXPECT_EQ(results[0].size(), static_cast<std::size_t>(ranks));
  EXPECT_TRUE(results[0] == results[1]) << codec;
}

TEST(DeviceHosts, ResultsHaveTheBitsOfTheCpu) {
  for (const char* codec : {"int8:min=0,ndim=0,wire=gather", "fp8_e4m3:min=0,ndim=0,wire=gather,ef=off", kTopk,
                            "group_topk:min=0,ndim=0,wire=gather,rate=5%,values=f16,warmup=3", kTwobit, kThreshold,
                            "weight0=>group_topk:min=0,ndim=0,wire=gather;*=>int8:min=0,ndim=0,wire=gather"}) {
    expect_bits_of_the_cpu(4, codec);
    expect_bits_of_the_cpu(kRanks, codec);
  }
}

TEST(DeviceHosts, ResidualsAreSent) {
  expect_codes_well([](const ScenarioFn& scenario, std::uint64_t seed) { expect_well(scenario, seed); });
}

// The codec keeps every element, so that sums are those of dense streams.
TEST(DeviceHosts, ScenariosOfAStream) {
  const std::string codec = "compression.codec = \"group_topk:rate=1,group=64,min=0,ndim=0,wire=gather\"\n";
  expect_well(stream_steps(3, 8), 3, codec);
  expect_well(stream_forward(6, 10), 6, codec);
  expect_well(stream_unused(4, 6), 4, codec);
  expect_well(stream_closed_at_once(10, 2), 10, codec);
  expect_well(stream_deviations(5, 10), 5, codec);
  expect_well(uneven_epochs(9, 4), 9, codec);
  expect_well(stream_asked_in_a_void_step(11, 5), 11, codec);
  expect_well(stream_dying(2), 1, codec);
  expect_well(gone_while_joined(2, true), 1, codec);
}

TEST(DeviceHosts, WithoutNcclTheCpuEncodes) {
  const std::vector<std::uint64_t> none(std::size_t{kRanks}, 0);
  const std::vector<std::uint64_t> all(std::size_t{kRanks}, 1200);
  EXPECT_EQ(encoded_bytes(on_hosts(kRanks, 1), kTopk), all);
  EXPECT_EQ(encoded_bytes(on_hosts(kRanks, 1, "device.data = \"host\"\n"), kTopk), none);
  world::ThreadOptions without = on_hosts(kRanks, 1, "log.level = \"error\"\n");
  without.rank_without_nccl = 1;
  EXPECT_EQ(encoded_bytes(without, kTopk), none);
}

TEST(DeviceHosts, WithoutMemoryOnOneGpuTheCpuEncodes) {
  world::ThreadOptions without = on_hosts(kRanks, 1, "log.level = \"error\"\n");
  without.short_rank = 1;
  EXPECT_EQ(encoded_bytes(without, kTopk), std::vector<std::uint64_t>(std::size_t{kRanks}, 0));
}

TEST(DeviceHosts, WithoutKernelsOnOneGpuTheCpuEncodes) {
  for (const char* data : {"log.level = \"error\"\n", "log.level = \"error\"\ndevice.data = \"host\"\n"}) {
    world::ThreadOptions without = on_hosts(kRanks, 1, data);
    without.rank_without_kernels = 1;
    EXPECT_EQ(encoded_bytes(without, kTopk), std::vector<std::uint64_t>(std::size_t{kRanks}, 0)) << data;
  }
}

TEST(DeviceHosts, ALostGpuEndsTheJobOnAllRanks) {
  world::ThreadOptions lost = on_hosts(kRanks, 1);
  lost.broken_rank = 1;
  EXPECT_EQ(world::run_threads(lost, lose_while_encoding), "");
}

// ---- policies, which send some steps over NCCL and some through host memory ----

// Without a loss budget, and with an optimizer for which every level costs loss, auto sends all steps over NCCL. The
// other policies decide by the measured link.
constexpr const char* kNeverCompresses = "auto:optimizer=other,loss_budget=0,min=0,ndim=0";
using Policies = std::array<const char*, 4>;
constexpr Policies kPolicies = {"auto:min=0,ndim=0,gain=0", "auto:min=0,ndim=0,gain=0,fp16=1", "twobit:min=1KiB,ndim=0",
                                kNeverCompresses};
// Without float16, which rounds sums beyond 2,048: a residual that is sent in a step of that level is such a sum.
constexpr Policies kExactPolicies = {"auto:min=0,ndim=0,gain=0", "auto:min=0,ndim=0", "twobit:min=1KiB,ndim=0",
                                     kNeverCompresses};

// Sums of rank 0 over all runs.
struct Transfers {
  std::uint64_t over_nccl = 0;
  std::uint64_t fetched = 0;
};

std::uint64_t number_of(const std::string& json, const std::string& key) {
  const std::size_t at = json.find("\"" + key + "\":");
  return at == std::string::npos ? 0 : std::stoull(json.substr(at + key.size() + 3));
}

Transfers run_policies(int ranks, const Policies& policies,
                       const std::function<ScenarioFn(const CompressedRun&)>& scenario) {
  Transfers transfers;
  std::mutex mutex;
  for (std::uint64_t seed = 1; seed <= policies.size(); ++seed) {
    world::ThreadOptions chosen;
    chosen.seed = seed;
    chosen.size = ranks;
    chosen.ranks_per_host = 1;
    chosen.options_toml = kSmall;
    chosen.on_device = true;
    chosen.nccl = true;
    chosen.stats = [&](Rank rank, const std::string& json) {
      const std::lock_guard lock(mutex);
      if (rank == 0) {
        transfers.over_nccl += number_of(json, "device.nccl_bytes");
        transfers.fetched += number_of(json, "device.fetched_bytes");
      }
    };
    CompressedRun run = run_of(seed, world::kSanitized ? 10 : 40);
    run.codec = policies.at(seed % policies.size());
    EXPECT_EQ(world::run_threads(chosen, scenario(run)), "") << run.codec;
  }
  return transfers;
}

TEST(DevicePolicies, DenseStepsGoOverNcclAndOthersDoNot) {
  const Transfers transfers = run_policies(2, kExactPolicies, compressed_balance);
  EXPECT_GT(transfers.over_nccl, 0U);
  EXPECT_GT(transfers.fetched, 0U);
}

// With a policy that never compresses, sums are those of dense streams. Only steps after a step that was given up, and
// after joins, go through host memory.
TEST(DevicePolicies, ScenariosOfAStream) {
  const std::string codec = std::string("compression.codec = \"") + kNeverCompresses + "\"\n";
  const auto expect = [&](const ScenarioFn& scenario, std::uint64_t seed = 1) {
    world::ThreadOptions chosen = on_hosts(3, seed, codec);
    chosen.ranks_per_host = 0;  // no plan changes on one host
    EXPECT_EQ(world::run_threads(chosen, scenario), "");
  };
  expect(stream_steps(3, 8), 3);
  expect(stream_forward(6, 10), 6);
  expect(stream_unused(4, 6), 4);
  expect(stream_closed_at_once(10, 2), 10);
  expect(stream_deviations(5, 10), 5);
  expect(uneven_epochs(9, 4), 9);
  expect(stream_asked_in_a_void_step(11, 5), 11);
  expect(stream_dying(2));
  expect(gone_while_joined(2, true));
}

TEST(DevicePolicies, StepsThatAreGivenUp) {
  const auto wild = [](CompressedRun run) {
    run.wild = true;
    return compressed_steps(run);
  };
  const Transfers transfers = run_policies(3, kPolicies, wild);
  EXPECT_GT(transfers.over_nccl, 0U);
  EXPECT_GT(transfers.fetched, 0U);
}

}  // namespace
}  // namespace sirtaki::scenarios
