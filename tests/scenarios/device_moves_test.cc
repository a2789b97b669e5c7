// Operations by name that move blocks of tensors on a fake GPU: over a fake NCCL, or through host memory on all ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/scenarios/device_cases.h"
#include "tests/scenarios/support.h"
#include "tests/world/thread_world.h"

namespace sirtaki::scenarios {
namespace {

constexpr int kMovers = 3;

enum class Over : std::uint8_t { kNccl, kHost };

// Requires that tensors of all ranks are sent over NCCL without a copy to the host, or are all copied there.
world::ThreadOptions movers(Over over) {
  world::ThreadOptions options = on_fake_gpus(kMovers, 21);
  options.expect_no_leaks = true;
  options.stats = [over](Rank rank, const std::string& json) {
    for (const char* staged : {"\"device.fetched_bytes\":0,", "\"device.returned_bytes\":0,"}) {
      EXPECT_EQ(json.find(staged) != std::string::npos, over == Over::kNccl) << rank << json;
    }
    EXPECT_EQ(json.find("\"device.nccl_bytes\":0") == std::string::npos, over == Over::kNccl) << rank << json;
  };
  return options;
}

// One rank lacks NCCL, so that the tensors of all are copied to the host.
world::ThreadOptions movers_without_nccl() {
  world::ThreadOptions options = movers(Over::kHost);
  options.options_toml += "log.level = \"error\"\n";
  options.rank_without_nccl = 1;
  return options;
}

// An output of no elements has an address all the same, because null means that the runtime allocates the result.
TensorView output_of(Owned& blocks) {
  blocks.values.reserve(1);
  return blocks.view();
}

using Counts = std::function<std::size_t(Rank rank)>;

engine::OpSpec gather(const std::string& name, Owned& rows, TensorView output) {
  engine::OpSpec spec = allreduce(name, rows);
  spec.kind = OpKind::kAllgather;
  spec.output = output;
  return spec;
}

std::vector<float> gathered(const RankApi& api, const Counts& count, std::uint64_t salt) {
  std::vector<float> all;
  for (Rank rank = 0; rank < api.size(); ++rank) {
    const Owned block = filled(rank, salt, count(rank));
    all.insert(all.end(), block.values.begin(), block.values.end());
  }
  return all;
}

Scenario gather_blocks(RankApi& api) {
  const Counts sizes[] = {
      [](Rank) { return 5U; },  // equal
      [](Rank rank) { return 3U + static_cast<unsigned>(rank); },
      [](Rank rank) { return rank == 1 ? 0U : 700U; },
      [](Rank rank) { return rank == 2 ? 4000U : 0U; },
      [](Rank) { return 0U; },
  };
  std::uint64_t salt = 0;
  for (const Counts& count : sizes) {
    const std::string name = "gather" + std::to_string(++salt);
    Owned rows = filled(api.rank(), salt, count(api.rank()));
    Owned all;
    const std::vector<float> expected = gathered(api, count, salt);
    all.values.resize(expected.size());
    require_ok(co_await api.run(gather(name, rows, output_of(all))), name);
    require(all.values == expected, name + ": wrong blocks");
    // Where the own block lies in the output.
    std::size_t before = 0;
    for (Rank rank = 0; rank < api.rank(); ++rank) {
      before += count(rank);
    }
    Owned whole;
    whole.values.resize(expected.size());
    std::copy(rows.values.begin(), rows.values.end(), whole.values.begin() + static_cast<std::ptrdiff_t>(before));
    engine::OpSpec spec = gather(name + " in place", rows, output_of(whole));
    spec.input.data = spec.output.data + before * sizeof(float);
    require_ok(co_await api.run(std::move(spec)), name + " in place");
    require(whole.values == expected, name + ": wrong blocks in place");
  }
}

TEST(DeviceMoves, AnAllgatherWithMemoryForItsResultGoesOverNccl) {
  EXPECT_EQ(world::run_threads(movers(Over::kNccl), gather_blocks), "");
}

TEST(DeviceMoves, WithoutNcclItGoesThroughHostMemory) {
  EXPECT_EQ(world::run_threads(movers_without_nccl(), gather_blocks), "");
}

using Block = std::function<std::size_t(Rank from, Rank to)>;

Scenario exchange_blocks(RankApi& api) {
  const Block sizes[] = {
      [](Rank, Rank) { return 4U; },  // equal
      [](Rank from, Rank to) { return (from + to) % 2 == 0 ? 0U : 500U + static_cast<unsigned>(from); },
      [](Rank from, Rank to) { return from == to ? 9U : 0U; },
      [](Rank from, Rank to) { return from == 0 && to == 2 ? 3U : 0U; },  // no memory is received elsewhere
  };
  std::uint64_t salt = 0;
  for (const Block& size : sizes) {
    const std::string name = "exchange" + std::to_string(++salt);
    Owned rows;
    std::vector<float> expected;
    engine::OpSpec spec;
    spec.kind = OpKind::kAlltoall;
    spec.name = name;
    for (Rank other = 0; other < api.size(); ++other) {
      const auto value = [](Rank from, Rank to) { return static_cast<float>(10 * from + to + 1); };
      rows.values.insert(rows.values.end(), size(api.rank(), other), value(api.rank(), other));
      expected.insert(expected.end(), size(other, api.rank()), value(other, api.rank()));
      spec.splits.push_back(static_cast<std::int64_t>(size(api.rank(), other)));
    }
    Owned received;
    received.values.resize(expected.size());
    spec.input = rows.view();
    spec.dims = {static_cast<std::int64_t>(rows.values.size())};
    spec.output = output_of(received);
    const std::uint64_t request = api.submit(std::move(spec));
    require_ok(co_await api.wait(request), name);
    require(received.values == expected, name + ": wrong blocks");
    for (Rank from = 0; from < api.size(); ++from) {
      require(api.result(request).received_splits[static_cast<std::size_t>(from)] ==
                  static_cast<std::int64_t>(size(from, api.rank())),
              name + ": the number of rows received");
    }
  }
}

TEST(DeviceMoves, AnAlltoallWithMemoryForItsResultGoesOverNccl) {
  EXPECT_EQ(world::run_threads(movers(Over::kNccl), exchange_blocks), "");
}

TEST(DeviceMoves, WithoutNcclAnAlltoallGoesThroughHostMemory) {
  EXPECT_EQ(world::run_threads(movers_without_nccl(), exchange_blocks), "");
}

// Ranks need not agree on memory for results before: they exchange with the sizes who has it.
Scenario gather_without_memory_on_one_rank(RankApi& api) {
  const Counts count = [](Rank rank) { return 10U + static_cast<unsigned>(rank); };
  Owned rows = filled(api.rank(), 1, count(api.rank()));
  const std::vector<float> expected = gathered(api, count, 1);
  Owned all;
  all.values.resize(expected.size());
  const std::uint64_t request = api.submit(gather("gather", rows, api.rank() == 1 ? TensorView() : all.view()));
  require_ok(co_await api.wait(request), "an allgather");
  const engine::OpResult& result = api.result(request);
  require(result.dims == std::vector{static_cast<std::int64_t>(expected.size())}, "the shape of the result");
  if (api.rank() == 1) {
    all.values.resize(result.data.size() / sizeof(float));
    std::memcpy(all.values.data(), result.data.data(), result.data.size());
  }
  require(all.values == expected, "wrong blocks");
}

TEST(DeviceMoves, ARankWithoutMemoryForItsResultBringsTheOperationToTheHost) {
  world::ThreadOptions options = movers(Over::kHost);
  options.stats = [](Rank rank, const std::string& json) {
    EXPECT_NE(json.find("\"device.nccl_bytes\":0"), std::string::npos) << rank << json;
  };
  EXPECT_EQ(world::run_threads(options, gather_without_memory_on_one_rank), "");
}

// The other ranks begin theirs over NCCL, and take it back.
Scenario gather_with_wrong_memory_on_one_rank(RankApi& api) {
  Owned rows = filled(api.rank(), 1, 4);
  Owned all;
  all.values.resize(static_cast<std::size_t>(4 * api.size()) + (api.rank() == 0 ? 1 : 0));
  const Status refused = co_await api.run(gather("gather", rows, all.view()));
  require(refused.code() == Code::kInvalidArgument &&
              refused.text().find("the output has 13 elements but rank 0 receives 12") != std::string_view::npos,
          "an output of another size: " + refused.to_string());
  all.values.resize(static_cast<std::size_t>(4 * api.size()));
  require_ok(co_await api.run(gather("next", rows, all.view())), "the next operation");
}

TEST(DeviceMoves, MemoryOfAnotherSizeIsAnErrorOnAllRanks) {
  EXPECT_EQ(world::run_threads(movers(Over::kNccl), gather_with_wrong_memory_on_one_rank), "");
}

}  // namespace
}  // namespace sirtaki::scenarios
