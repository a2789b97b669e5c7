// Operations of process sets on fake GPUs: over a fake NCCL in one order for all sets, whatever the order of the
// programs, or through host memory for all ranks of a set.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/scenarios/device_cases.h"
#include "tests/scenarios/support.h"
#include "tests/world/thread_world.h"

namespace sirtaki::scenarios {
namespace {

using Ranks = std::vector<Rank>;

engine::OpSpec of_set(engine::OpSpec spec, const Ranks& ranks) {
  spec.ranks = ranks;
  return spec;
}

std::string name_of(const Ranks& ranks) {
  std::string name = "set";
  for (const Rank rank : ranks) {
    name += std::to_string(rank);
  }
  return name;
}

// Keeps these ranks together; an end in common matters, since rank 0 orders the operations of all sets.
engine::OpSpec barrier(const std::string& name, const Ranks& ranks = {}) {
  engine::OpSpec spec;
  spec.kind = OpKind::kBarrier;
  spec.name = name;
  spec.ranks = ranks;
  return spec;
}

bool contains(const Ranks& ranks, Rank rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

std::vector<bool> members(const Ranks& ranks, int size) {
  std::vector<bool> flags(static_cast<std::size_t>(size));
  for (const Rank rank : ranks) {
    flags[static_cast<std::size_t>(rank)] = true;
  }
  return flags;
}

// `all`: all ranks use their GPUs, so that each gets its objects back.
world::ThreadOptions options(int size, bool all = true) {
  world::ThreadOptions options = on_fake_gpus(size, 31);
  options.expect_no_leaks = all;
  return options;
}

// Requires which ranks copied tensors to the host, and which used NCCL.
void expect_ways(world::ThreadOptions& options, const Ranks& over_nccl, const Ranks& over_host) {
  options.stats = [=](Rank rank, const std::string& json) {
    const bool host = contains(over_host, rank);
    const bool nccl = contains(over_nccl, rank);
    const auto none = [&](const std::string& key) {
      return json.find("\"" + key + "\":0") != std::string::npos || json.find(key) == std::string::npos;
    };
    EXPECT_EQ(none("device.fetched_bytes"), !host) << rank << json;
    EXPECT_EQ(none("device.nccl_bytes"), !nccl) << rank << json;
    EXPECT_EQ(json.find("\"device.data\":\"nccl\"") != std::string::npos, nccl) << rank << json;
  };
}

// Each rank submits sums of its sets, and of all ranks if `job`, in an order of its own.
Scenario sum_in_any_order(RankApi& api, std::vector<Ranks> sets, bool job, int rounds) {
  const Rank me = api.rank();
  if (job) {
    sets.emplace_back();
  }
  for (int round = 0; round < rounds; ++round) {
    struct Sum {
      std::size_t set = 0;
      std::uint64_t salt = 0;
      Owned tensor;
      std::uint64_t request = 0;
    };
    std::vector<Sum> sums;
    for (std::size_t s = 0; s < sets.size(); ++s) {
      for (std::uint64_t salt = 0; salt < 3; ++salt) {
        if (sets[s].empty() || contains(sets[s], me)) {
          sums.push_back({s, salt, filled(me, salt, 40 + 700 * salt), 0});
        }
      }
    }
    std::ranges::shuffle(sums, api.random());
    for (Sum& sum : sums) {
      engine::OpSpec spec = allreduce(name_of(sets[sum.set]) + "." + std::to_string(sum.salt), sum.tensor);
      sum.request = api.submit(of_set(std::move(spec), sets[sum.set]));
    }
    std::ranges::shuffle(sums, api.random());
    for (Sum& sum : sums) {
      require_ok(co_await api.wait(sum.request), name_of(sets[sum.set]));
      const auto who = sets[sum.set].empty() ? everybody(api.size()) : members(sets[sum.set], api.size());
      require_sum(sum.tensor, who, sum.salt, name_of(sets[sum.set]));
    }
  }
  require_ok(co_await api.run(barrier("end")), "the end");
}

const std::vector<Ranks> kOverlapping = {{0, 1}, {1, 2}, {0, 2}, {0, 1, 3}};

TEST(DeviceSets, OverlappingSetsAndTheJobGoOverNcclInAnyOrder) {
  for (const bool job : {false, true}) {
    world::ThreadOptions chosen = options(4);
    expect_ways(chosen, {0, 1, 2, 3}, {});
    for (chosen.seed = 1; chosen.seed <= 3; ++chosen.seed) {
      const auto scenario = [job](RankApi& api) { return sum_in_any_order(api, kOverlapping, job, 3); };
      EXPECT_EQ(world::run_threads(chosen, scenario), "");
    }
  }
}

TEST(DeviceSets, Rank0NeedsNoGpuAndNoSet) {
  world::ThreadOptions chosen = options(4);
  chosen.cpu_rank = 0;
  expect_ways(chosen, {1, 2, 3}, {});
  const auto scenario = [](RankApi& api) {
    return sum_in_any_order(api, {{1, 2}, {2, 3}, {1, 3}, {1, 2, 3}}, false, 3);
  };
  EXPECT_EQ(world::run_threads(chosen, scenario), "");
}

TEST(DeviceSets, ARankWithoutNcclBringsItsSetsToHostMemory) {
  world::ThreadOptions chosen = options(4);
  chosen.options_toml += "log.level = \"error\"\n";
  chosen.rank_without_nccl = 2;
  expect_ways(chosen, {0, 1, 3}, {1, 2, 0});
  const auto scenario = [](RankApi& api) { return sum_in_any_order(api, kOverlapping, false, 2); };
  EXPECT_EQ(world::run_threads(chosen, scenario), "");
}

TEST(DeviceSets, ASetThatCannotConnectUsesHostMemory) {
  world::ThreadOptions chosen = options(3, false);
  chosen.options_toml += "log.level = \"error\"\n";
  chosen.nccl_error_rank = 1;
  chosen.nccl_error_after = 0;
  expect_ways(chosen, {}, {0, 1});
  const auto scenario = [](RankApi& api) { return sum_in_any_order(api, {{0, 1}}, false, 3); };
  EXPECT_EQ(world::run_threads(chosen, scenario), "");
}

TEST(DeviceSets, HostMemoryMayBeDemanded) {
  world::ThreadOptions chosen = options(3, false);
  chosen.options_toml += "device.data = \"host\"\n";
  expect_ways(chosen, {}, {0, 1});
  const auto scenario = [](RankApi& api) { return sum_in_any_order(api, {{0, 1}}, false, 2); };
  EXPECT_EQ(world::run_threads(chosen, scenario), "");
}

Scenario refuse_in_a_set(RankApi& api) {
  if (api.rank() != 0) {
    const Ranks ranks = {1, 2};
    Owned tensor = filled(api.rank(), 1, 100);
    const Status status = co_await api.run(of_set(allreduce("gradient", tensor), ranks));
    require(status.text().find("device.data = nccl: ") != std::string_view::npos && status.blame().rank == 2,
            "an allreduce: " + status.to_string());
  }
  require_ok(co_await api.run(barrier("end")), "the end");
}

TEST(DeviceSets, ARankWithoutNcclIsAnErrorWhereItIsDemanded) {
  world::ThreadOptions chosen = options(3, false);
  chosen.options_toml += "device.data = \"nccl\"\n";
  chosen.rank_without_nccl = 2;
  EXPECT_EQ(world::run_threads(chosen, refuse_in_a_set), "");
}

// ---- all operations ----

Scenario move_blocks_in_a_set(RankApi& api) {
  const Ranks ranks = {0, 2, 3};
  if (api.rank() == 1) {
    require_ok(co_await api.run(barrier("end")), "the end");
    co_return;
  }
  const auto place = static_cast<std::size_t>(std::ranges::find(ranks, api.rank()) - ranks.begin());
  for (std::uint64_t use = 0; use < 3; ++use) {
    Owned rows = filled(api.rank(), use, 5 + place);
    std::vector<float> expected;
    for (std::size_t p = 0; p < ranks.size(); ++p) {
      const Owned block = filled(ranks[p], use, 5 + p);
      expected.insert(expected.end(), block.values.begin(), block.values.end());
    }
    Owned all;
    all.values.resize(expected.size());
    engine::OpSpec gather = of_set(allreduce("gather", rows), ranks);
    gather.kind = OpKind::kAllgather;
    gather.output = all.view();
    require_ok(co_await api.run(std::move(gather)), "an allgather");
    require(all.values == expected, "wrong blocks of an allgather");

    Owned sent = filled(api.rank(), use, 6);
    Owned received;
    received.values.resize(6);
    engine::OpSpec exchange = of_set(allreduce("exchange", sent), ranks);
    exchange.kind = OpKind::kAlltoall;
    exchange.output = received.view();
    require_ok(co_await api.run(std::move(exchange)), "an alltoall");
    for (std::size_t i = 0; i < 6; ++i) {
      require(received.values[i] == value_of(ranks[i / 2], use, 2 * place + i % 2), "wrong blocks of an alltoall");
    }

    Owned whole = filled(api.rank(), use, 6);
    Owned part;
    part.values.resize(2);
    engine::OpSpec scatter = of_set(allreduce("scatter", whole), ranks);
    scatter.kind = OpKind::kReduceScatter;
    scatter.output = part.view();
    require_ok(co_await api.run(std::move(scatter)), "a reduce-scatter");
    require(part.values[1] == sum_over(members(ranks, api.size()), use, 2 * place + 1), "wrong rows of a sum");

    Owned copy = filled(api.rank(), use, 9);
    engine::OpSpec broadcast = of_set(allreduce("copy", copy), ranks);
    broadcast.kind = OpKind::kBroadcast;
    broadcast.root = 2;
    require_ok(co_await api.run(std::move(broadcast)), "a broadcast");
    require(copy.values == filled(2, use, 9).values, "a wrong broadcast");

    Owned mean = filled(api.rank(), use, 30);
    engine::OpSpec average = of_set(allreduce("mean", mean), ranks);
    average.reduce_op = ReduceOp::kAverage;
    require_ok(co_await api.run(std::move(average)), "an average");
    require(mean.values[4] == sum_over(members(ranks, api.size()), use, 4) / 3, "a wrong average");
  }
  require_ok(co_await api.run(barrier("end")), "the end");
}

TEST(DeviceSets, AllOperationsGoOverNccl) {
  world::ThreadOptions chosen = options(4, false);
  expect_ways(chosen, {0, 2, 3}, {});
  EXPECT_EQ(world::run_threads(chosen, move_blocks_in_a_set), "");
}

// ---- ends ----

// One rank of `set`, or rank 0, leaves after the first sums.
Scenario leave_a_set(RankApi& api, Rank leaver, Ranks set, Ranks other) {
  const Rank me = api.rank();
  Owned tensor = filled(me, 1, 100);
  if (contains(set, me)) {
    require_ok(co_await api.run(of_set(allreduce("before", tensor), set)), "before");
  }
  if (contains(other, me)) {
    require_ok(co_await api.run(of_set(allreduce("before", tensor), other)), "before");
  }
  require_ok(co_await api.run(barrier("begun")), "begun");
  if (me == leaver) {
    require_ok(co_await api.leave(), "leaving");
    co_return;
  }
  if (contains(set, me)) {
    // Until its connections are closed, rank 0 orders operations of others.
    Status status;
    for (int i = 0; i < 1000 && status.ok(); ++i) {
      status = co_await api.run(of_set(allreduce("after", tensor), set));
    }
    require(status.code() == Code::kPeerLost && status.blame().rank == leaver, "after: " + status.to_string());
  }
  if (contains(other, me)) {
    for (int i = 0; i < 5; ++i) {
      Owned again = filled(me, 2, 100);
      require_ok(co_await api.run(of_set(allreduce("others", again), other)), "of others");
      require_sum(again, members(other, api.size()), 2, "of others");
    }
  }
  const Ranks late = {1, 2, 3};
  if (leaver == 0) {
    // Rank 1 or 2 knows that rank 0 is gone, so this set cannot decide for NCCL.
    Owned again = filled(me, 3, 100);
    require_ok(co_await api.run(of_set(allreduce("late", again), late)), "a set that decides late");
    require_sum(again, members(late, api.size()), 3, "a set that decides late");
  } else {
    const Ranks left = {0, 1, 2};
    require_ok(co_await api.run(barrier("end", left)), "the end");
  }
}

TEST(DeviceSets, ARankThatLeavesEndsItsSetsOnly) {
  world::ThreadOptions chosen = options(4);
  chosen.options_toml += "log.level = \"error\"\n";
  expect_ways(chosen, {0, 1, 2}, {});
  const auto expect = chosen.stats;
  chosen.stats = [expect](Rank rank, const std::string& json) {
    if (rank != 3) {  // its session is closed
      expect(rank, json);
    }
  };
  const auto scenario = [](RankApi& api) { return leave_a_set(api, 3, {2, 3}, {0, 1}); };
  EXPECT_EQ(world::run_threads(chosen, scenario), "");
}

TEST(DeviceSets, WithoutRank0AllSetsEnd) {
  world::ThreadOptions chosen = options(4, false);
  chosen.options_toml += "log.level = \"error\"\n";
  const auto scenario = [](RankApi& api) { return leave_a_set(api, 0, {1, 2}, {}); };
  EXPECT_EQ(world::run_threads(chosen, scenario), "");
}

Scenario demand_nccl_without_rank_0(RankApi& api) {
  require_ok(co_await api.run(barrier("begun")), "begun");
  if (api.rank() == 0) {
    require_ok(co_await api.leave(), "leaving");
    co_return;
  }
  const Ranks ranks = {1, 2};
  Owned tensor = filled(api.rank(), 1, 100);
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = co_await api.run(of_set(allreduce("late", tensor), ranks));
  }
  require(status.code() == Code::kPeerLost && status.blame().rank == 0, "late: " + status.to_string());
}

TEST(DeviceSets, TheLossOfRank0IsALossWhereNcclIsDemanded) {
  world::ThreadOptions chosen = options(3, false);
  chosen.options_toml += "log.level = \"error\"\ndevice.data = \"nccl\"\n";
  for (chosen.seed = 1; chosen.seed <= 5; ++chosen.seed) {
    EXPECT_EQ(world::run_threads(chosen, demand_nccl_without_rank_0), "");
  }
}

Scenario die_in_a_set(RankApi& api) {
  const Ranks never = {0, 3};
  const Ranks ranks = {1, 2, 3};
  if (api.rank() == 0) {
    Owned tensor = filled(0, 1, 100);
    const Status status = co_await api.run(of_set(allreduce("never", tensor), never));
    require(!status.ok() && status.blame().rank == 3, "of rank 0: " + status.to_string());
    co_return;
  }
  for (int round = 0;; ++round) {
    if (api.rank() == 3 && round == 3) {
      api.die();
    }
    Owned tensor = filled(api.rank(), 1, 100);
    const Status status = co_await api.run(of_set(allreduce("sum", tensor), ranks));
    if (!status.ok()) {
      require(round == 3 && status.blame().rank == 3, "a sum: " + status.to_string());
      co_return;
    }
  }
}

TEST(DeviceSets, ARankThatDiesEndsTheJob) {
  world::ThreadOptions chosen = options(4, false);
  chosen.options_toml += "log.level = \"error\"\n";
  EXPECT_EQ(world::run_threads(chosen, die_in_a_set), "");
}

Scenario break_in_a_set(RankApi& api) {
  if (api.rank() == 2) {
    require(!(co_await api.run(barrier("end"))).ok(), "the job ends");
    co_return;
  }
  const Ranks ranks = {0, 1};
  Status status;
  for (int round = 0; round < 20 && status.ok(); ++round) {
    Owned tensor = filled(api.rank(), 1, 100);
    status = co_await api.run(of_set(allreduce("sum", tensor), ranks));
  }
  require(status.text().find("NCCL has failed on rank 1") != std::string_view::npos && status.blame().rank == 1,
          "a sum: " + status.to_string());
}

TEST(DeviceSets, AnErrorOfNcclEndsTheJobOnAllRanks) {
  world::ThreadOptions chosen = options(3, false);
  chosen.options_toml += "log.level = \"error\"\n";
  chosen.nccl_error_rank = 1;
  EXPECT_EQ(world::run_threads(chosen, break_in_a_set), "");
}

}  // namespace
}  // namespace sirtaki::scenarios
