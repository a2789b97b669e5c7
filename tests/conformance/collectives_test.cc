// Compares every backend, kind, dtype, reduce operation, number of ranks and size with a plain reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/half/half.h"
#include "runtime/net/catalog.h"
#include "runtime/net/device/device_collectives.h"
#include "tests/conformance/collectives_fixture.h"
#include "tests/world/seeds.h"

namespace sirtaki::net::testing {
namespace {

TEST_P(CollectivesConformance, AllreduceGivesTheReferenceBitForBit) {
  std::uint64_t index = 0;
  for (int type = 0; type < kDTypeCount; ++type) {
    for (int op = 0; op < kElementwiseOpCount; ++op) {
      const auto dtype = static_cast<DType>(type);
      const auto reduce_op = static_cast<ReduceOp>(op);
      if (refused(dtype, reduce_op)) {
        continue;
      }
      for (const std::size_t elements : {0U, 1U, 3U, 31U, 32U, 64U, 65U, 257U, 1000U, 5003U}) {
        if (!world::has_case(index++)) {
          continue;
        }
        const auto in = inputs(dtype, elements);
        std::vector<Memory> out(in.size(), Memory(in[0].size()));
        auto args = args_for_all(OpKind::kAllreduce);
        for (std::size_t rank = 0; rank < in.size(); ++rank) {
          args[rank].dtype = dtype;
          args[rank].op = reduce_op;
          args[rank].in = in[rank];
          args[rank].out = out[rank];
        }
        const Memory expected = reference(reduce_op, dtype, in, hosts());
        for (const std::size_t in_one_exchange : {std::numeric_limits<std::size_t>::max(), std::size_t{0}}) {
          for (auto& of_rank : args) {
            of_rank.exchange_bytes = in_one_exchange;
          }
          run(args);
          for (const Memory& result : out) {
            ASSERT_EQ(result, expected) << dtype_name(dtype) << " " << reduce_op_name(reduce_op) << " " << elements;
          }
        }
      }
    }
  }
}

// Every rank contributes 40000, whose sum float16 cannot hold, and the smallest number of float16.
TEST_P(CollectivesConformance, AveragesOfHalvesFitWhereTheirSumDoesNot) {
  for (const float value : {40000.0F, over_nccl() ? 1.0F : 0x1p-24F}) {
    for (const OpKind kind : {OpKind::kAllreduce, OpKind::kReduceScatter}) {
      for (const std::size_t each : {1U, 20U, 3000U}) {
        const std::size_t elements = each * static_cast<std::size_t>(size());
        std::vector<std::uint16_t> in(elements, kernels::f32_to_f16(value));
        const bool whole = kind == OpKind::kAllreduce;
        std::vector<std::vector<std::uint16_t>> out(static_cast<std::size_t>(size()),
                                                    std::vector<std::uint16_t>(whole ? elements : each));
        auto args = args_for_all(kind);
        for (std::size_t rank = 0; rank < out.size(); ++rank) {
          args[rank].dtype = DType::kF16;
          args[rank].op = ReduceOp::kAverage;
          args[rank].in = std::as_bytes(std::span(in));
          args[rank].out = std::as_writable_bytes(std::span(out[rank]));
          if (!whole) {
            args[rank].recv_counts.assign(out.size(), static_cast<std::int64_t>(each));
          }
        }
        run(std::move(args));
        for (const auto& result : out) {
          ASSERT_EQ(result, std::vector<std::uint16_t>(result.size(), in[0])) << op_kind_name(kind) << " of " << value;
        }
      }
    }
  }
}

TEST_P(CollectivesConformance, AllreduceInPlaceGivesTheSameAsOutOfPlace) {
  for (const std::size_t elements : {1U, 60U, 1000U, 9001U}) {
    const auto in = inputs(DType::kF32, elements);
    auto memory = in;
    auto args = args_for_all(OpKind::kAllreduce);
    for (std::size_t rank = 0; rank < in.size(); ++rank) {
      args[rank].op = ReduceOp::kAverage;
      args[rank].in = memory[rank];
      args[rank].out = memory[rank];
    }
    run(std::move(args));
    for (const Memory& result : memory) {
      ASSERT_EQ(result, reference(ReduceOp::kAverage, DType::kF32, in, hosts())) << elements;
    }
  }
}

TEST_P(CollectivesConformance, ReduceScatterGivesEachRankItsBlock) {
  std::uint64_t index = 0;
  for (int type = 0; type < kDTypeCount; ++type) {
    for (int op = 0; op < kElementwiseOpCount; ++op) {
      const auto dtype = static_cast<DType>(type);
      const auto reduce_op = static_cast<ReduceOp>(op);
      if (refused(dtype, reduce_op)) {
        continue;
      }
      for (int salt = 0; salt < 4; ++salt) {
        if (!world::has_case(index++)) {
          continue;
        }
        const auto blocks = counts(salt * salt);
        std::int64_t total = 0;
        for (const std::int64_t count : blocks) {
          total += count;
        }
        const auto in = inputs(dtype, static_cast<std::size_t>(total));
        std::vector<Memory> out(in.size());
        auto args = args_for_all(OpKind::kReduceScatter);
        for (std::size_t rank = 0; rank < in.size(); ++rank) {
          out[rank].resize(static_cast<std::size_t>(blocks[rank]) * dtype_size(dtype));
          args[rank].dtype = dtype;
          args[rank].op = reduce_op;
          args[rank].in = in[rank];
          args[rank].out = out[rank];
          args[rank].recv_counts = blocks;
        }
        auto in_place = args;
        run(std::move(args));
        std::vector<Memory> memory = in;
        std::size_t begin = 0;
        for (std::size_t rank = 0; rank < in.size(); ++rank) {
          in_place[rank].tag = OpTag(last_tag_ + 1);
          in_place[rank].in = memory[rank];
          in_place[rank].out = Bytes(memory[rank]).subspan(begin, out[rank].size());
          begin += out[rank].size();
        }
        next_tag();
        run(in_place);
        const Memory expected = reference(reduce_op, dtype, in);
        begin = 0;
        for (std::size_t rank = 0; rank < in.size(); ++rank) {
          const auto first = expected.begin() + static_cast<std::ptrdiff_t>(begin);
          for (const ConstBytes result : {ConstBytes(out[rank]), ConstBytes(in_place[rank].out)}) {
            ASSERT_TRUE(std::equal(result.begin(), result.end(), first))
                << dtype_name(dtype) << " " << reduce_op_name(reduce_op) << " " << salt;
          }
          begin += out[rank].size();
        }
      }
    }
  }
}

TEST_P(CollectivesConformance, BroadcastGivesTheRootsMemoryToAll) {
  for (Rank root = 0; root < size(); ++root) {
    for (const std::size_t elements : {0U, 1U, 63U, 300U, 4001U}) {
      for (const DType dtype : {DType::kF32, DType::kU8, DType::kI64}) {
        auto memory = inputs(dtype, elements);
        const Memory expected = memory[static_cast<std::size_t>(root)];
        auto args = args_for_all(OpKind::kBroadcast);
        for (std::size_t rank = 0; rank < memory.size(); ++rank) {
          args[rank].dtype = dtype;
          args[rank].root = root;
          args[rank].out = memory[rank];
        }
        run(std::move(args));
        for (const Memory& result : memory) {
          ASSERT_EQ(result, expected) << "root " << root << ", " << elements;
        }
      }
    }
  }
}

TEST_P(CollectivesConformance, AllgatherConcatenatesBlocks) {
  for (int salt = 0; salt < 7; ++salt) {
    const DType dtype = salt % 2 == 0 ? DType::kF32 : DType::kI8;
    const auto blocks = salt < 5 ? counts(salt) : std::vector<std::int64_t>(static_cast<std::size_t>(size()), 6 - salt);
    std::vector<Memory> in;
    Memory expected;
    for (const std::int64_t count : blocks) {
      in.push_back(filler_.fill(dtype, static_cast<std::size_t>(count), false));
      expected.insert(expected.end(), in.back().begin(), in.back().end());
    }
    std::vector<Memory> out(in.size(), Memory(expected.size()));
    auto args = args_for_all(OpKind::kAllgather);
    for (std::size_t rank = 0; rank < in.size(); ++rank) {
      args[rank].dtype = dtype;
      args[rank].in = in[rank];
      args[rank].out = out[rank];
      args[rank].recv_counts = blocks;
    }
    auto in_place = args;
    run(std::move(args));
    for (const Memory& result : out) {
      ASSERT_EQ(result, expected);
    }
    const OpTag tag = next_tag();
    std::vector<Memory> memory(in.size(), Memory(expected.size()));
    std::size_t begin = 0;
    for (std::size_t rank = 0; rank < in.size(); ++rank) {
      std::ranges::copy(in[rank], memory[rank].begin() + static_cast<std::ptrdiff_t>(begin));
      in_place[rank].tag = tag;
      in_place[rank].in = ConstBytes(memory[rank]).subspan(begin, in[rank].size());
      in_place[rank].out = memory[rank];
      begin += in[rank].size();
    }
    run(std::move(in_place));
    for (const Memory& result : memory) {
      ASSERT_EQ(result, expected) << "in place";
    }
  }
}

TEST_P(CollectivesConformance, AnAllgatherMayReadItsOwnBlockOfTheOutputAlone) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<Memory> memory(ranks, Memory(ranks * 16));
  auto args = args_for_all(OpKind::kAllgather);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    args[rank].recv_counts.assign(ranks, 4);
    args[rank].in = ConstBytes(memory[rank]).subspan((rank + 1) % ranks * 16, 16);
    args[rank].out = memory[rank];
  }
  for (const Status& status : run_on_all(*world_, args)) {
    EXPECT_EQ(status.code(), ranks == 1 ? Code::kOk : Code::kInvalidArgument);
  }
}

TEST_P(CollectivesConformance, AlltoallMovesUnevenBlocks) {
  for (int salt = 0; salt < 5; ++salt) {
    // The last two leave ranks without a block for another one.
    const auto block = [salt, last = size() - 1](int from, int to) {
      if (salt > 2) {
        return static_cast<std::int64_t>((salt == 3 ? from == to : from == 0 && to == last) ? 40 : 0);
      }
      return static_cast<std::int64_t>((from + 2 * to + salt) % 3 == 0 ? 0 : 100 * from + 17 * to + 5);
    };
    std::vector<Memory> in(static_cast<std::size_t>(size()));
    std::vector<Memory> out(in.size());
    std::vector<Memory> expected(in.size());
    auto args = args_for_all(OpKind::kAlltoall);
    for (int from = 0; from < size(); ++from) {
      for (int to = 0; to < size(); ++to) {
        const Memory piece = filler_.fill(DType::kI16, static_cast<std::size_t>(block(from, to)), false);
        in[static_cast<std::size_t>(from)].insert(in[static_cast<std::size_t>(from)].end(), piece.begin(), piece.end());
        auto& target = expected[static_cast<std::size_t>(to)];
        target.insert(target.end(), piece.begin(), piece.end());
        args[static_cast<std::size_t>(from)].send_counts.push_back(block(from, to));
        args[static_cast<std::size_t>(to)].recv_counts.push_back(block(from, to));
      }
    }
    for (std::size_t rank = 0; rank < in.size(); ++rank) {
      out[rank].resize(expected[rank].size());
      args[rank].dtype = DType::kI16;
      args[rank].in = in[rank];
      args[rank].out = out[rank];
    }
    run(std::move(args));
    EXPECT_EQ(out, expected);
  }
}

TEST_P(CollectivesConformance, BarrierEndsNowhereBeforeAllHaveStartedIt) {
  if (over_nccl()) {
    CollectiveArgs args;
    args.kind = OpKind::kBarrier;
    EXPECT_EQ(static_cast<DeviceCollectives&>(world_->at(0)).check(args).code(), Code::kUnsupported);
    return;
  }
  std::atomic<int> started{0};
  std::atomic<int> ended{0};
  std::atomic<bool> early{false};
  const OpTag tag = next_tag();
  for (Rank rank = 0; rank < size(); ++rank) {
    world_->on(rank, [&, rank] {
      CollectiveArgs args;
      args.kind = OpKind::kBarrier;
      args.tag = tag;
      ++started;
      world_->at(rank).start(args, [&](Status status) {
        EXPECT_TRUE(status.ok()) << status.to_string();
        early = early || started != size();
        ++ended;
      });
    });
  }
  ASSERT_TRUE(world_->wait([&] { return ended == size(); }));
  EXPECT_FALSE(early);
}

TEST_P(CollectivesConformance, OperationsInFlightMayStartInAnyOrderUnlessTheirsIsFixed) {
  constexpr std::size_t kOperations = 40;
  std::vector<std::vector<Memory>> in;
  for (std::size_t op = 0; op < kOperations; ++op) {
    in.push_back(inputs(DType::kF32, 1 + op * 97));
  }
  std::vector<std::vector<Memory>> out = in;
  std::atomic<std::size_t> ended{0};
  for (Rank rank = 0; rank < size(); ++rank) {
    std::vector<std::size_t> order(kOperations);
    for (std::size_t op = 0; op < kOperations; ++op) {
      order[op] = op;
    }
    const std::uint64_t seed = world_->at(rank).caps().ordered ? 99 : static_cast<std::uint64_t>(rank) + 99;
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    for (const std::size_t op : order) {
      world_->on(rank, [&, rank, op] {
        CollectiveArgs args;
        args.tag = OpTag(1000 + op);
        args.priority = static_cast<std::int32_t>(op % 3);
        args.in = in[op][static_cast<std::size_t>(rank)];
        args.out = out[op][static_cast<std::size_t>(rank)];
        world_->at(rank).start(args, [&](Status status) {
          EXPECT_TRUE(status.ok()) << status.to_string();
          ++ended;
        });
      });
    }
  }
  ASSERT_TRUE(world_->wait([&] { return ended == kOperations * static_cast<std::size_t>(size()); }));
  for (std::size_t op = 0; op < kOperations; ++op) {
    for (const Memory& result : out[op]) {
      ASSERT_EQ(result, reference(ReduceOp::kSum, DType::kF32, in[op], hosts())) << op;
    }
  }
}

TEST_P(CollectivesConformance, ATagMayBeUsedAgainAfterItsOperationEnded) {
  for (int round = 0; round < 20; ++round) {
    const auto in = inputs(DType::kF32, 2000);
    std::vector<Memory> out(in.size(), Memory(in[0].size()));
    auto args = args_for_all(OpKind::kAllreduce);
    for (std::size_t rank = 0; rank < in.size(); ++rank) {
      args[rank].tag = OpTag(5);
      args[rank].in = in[rank];
      args[rank].out = out[rank];
    }
    run(std::move(args));
    ASSERT_EQ(out.back(), reference(ReduceOp::kSum, DType::kF32, in, hosts()));
  }
}

TEST_P(CollectivesConformance, BadArgumentsComeBackAsAnError) {
  Memory memory(16);
  auto args = args_for_all(OpKind::kAllreduce);
  for (auto& mine : args) {
    mine.in = memory;
    mine.out = Bytes(memory).first(8);
  }
  for (const Status& status : run_on_all(*world_, args)) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
  }
}

TEST_P(CollectivesConformance, AReduceScatterMayOverwriteItsOwnBlockAlone) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<Memory> memory(ranks, Memory(ranks * 16));
  auto args = args_for_all(OpKind::kReduceScatter);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    args[rank].recv_counts.assign(ranks, 4);
    args[rank].in = memory[rank];
    args[rank].out = Bytes(memory[rank]).subspan((rank + 1) % ranks * 16, 16);
  }
  for (const Status& status : run_on_all(*world_, args)) {
    EXPECT_EQ(status.code(), ranks == 1 ? Code::kOk : Code::kInvalidArgument);
  }
}

// With two ranks: among more, a rank whose messages match those it receives is ended by the owner of the operation.
class CollectivesPair : public CollectivesConformance {};

TEST_P(CollectivesPair, DifferentSizesAreAMismatchAndNotAHang) {
  for (const std::size_t elements : {10U, 3000U}) {
    std::vector<Memory> memory{Memory(elements * 4), Memory(elements * 4 + 4)};
    auto args = args_for_all(OpKind::kAllreduce);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      args[rank].in = memory[rank];
      args[rank].out = memory[rank];
    }
    const auto results = run_on_all(*world_, std::move(args));
    ASSERT_EQ(results.size(), 2U);
    for (const Status& status : results) {
      EXPECT_EQ(status.code(), Code::kMismatch) << status.to_string();
    }
  }
}

TEST_P(CollectivesConformance, AbortEndsWhatIsInFlightAndRefusesTheRest) {
  std::vector<Memory> memory(static_cast<std::size_t>(size()), Memory(8000));
  std::atomic<int> ended{0};
  // The last rank never takes part.
  for (Rank rank = 0; rank + 1 < size(); ++rank) {
    world_->on(rank, [&, rank] {
      CollectiveArgs args;
      args.tag = OpTag(9);
      args.in = memory[static_cast<std::size_t>(rank)];
      args.out = memory[static_cast<std::size_t>(rank)];
      world_->at(rank).start(args, [&](Status status) {
        EXPECT_EQ(status.code(), Code::kAborted);
        ++ended;
      });
      world_->at(rank).abort({Code::kAborted, "test"});
      args.tag = OpTag(10);
      world_->at(rank).start(args, [&](Status status) {
        EXPECT_EQ(status.code(), Code::kAborted);
        ++ended;
      });
    });
  }
  ASSERT_TRUE(world_->wait([&] { return ended == 2 * (size() - 1); }));
}

std::vector<std::string> world_names() {
  std::vector<std::string> names{"local", "shared", "hosts", "hosts_shared"};
  for (const Backend& backend : backends()) {
    names.emplace_back(backend.name);
  }
  return names;
}

std::vector<std::string> all_worlds() {
  std::vector<std::string> names = world_names();
  for (const std::string& name : device_worlds()) {
    names.push_back(name);
  }
  return names;
}

// Returns the worlds that compare arguments of ranks; NCCL does not.
std::vector<std::string> worlds_that_compare() {
  std::vector<std::string> names = all_worlds();
  std::erase(names, "nccl");
  std::erase(names, "ordered");
  return names;
}

std::string suite_name(const ::testing::TestParamInfo<std::tuple<std::string, int>>& suite) {
  return std::get<0>(suite.param) + "_" + std::to_string(std::get<1>(suite.param));
}

INSTANTIATE_TEST_SUITE_P(Backends, CollectivesPair,
                         ::testing::Combine(::testing::ValuesIn(worlds_that_compare()), ::testing::Values(2)),
                         suite_name);
INSTANTIATE_TEST_SUITE_P(Backends, CollectivesConformance,
                         ::testing::Combine(::testing::ValuesIn(all_worlds()),
                                            ::testing::ValuesIn(world::thread_ranks())),
                         suite_name);

}  // namespace
}  // namespace sirtaki::net::testing
