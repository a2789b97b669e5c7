// Operations over shared memory: lack of space, cancellations, lost ranks, and the order of operations.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/net/collectives/turn_queue.h"
#include "tests/unit/net/collectives/allreduces.h"
#include "tests/world/seeds.h"

namespace sirtaki::net::testing {
namespace {

using Effect = TurnQueue::Effect;

TEST(TurnQueue, RunsOnePieceATurnTheMostUrgentFirst) {
  ManualLoop loop;
  TurnQueue queue(loop);
  std::vector<std::string> ran;
  const auto add = [&](std::int32_t priority, Effect effect, const std::string& name) {
    queue.add(priority, effect, [&, name](const Status&) {
      ran.push_back(name);
      loop.post([&, name] { ran.push_back("turn after " + name); });
    });
  };
  add(5, Effect::kFills, "fills");
  add(5, Effect::kFrees, "frees");
  add(5, Effect::kFrees, "frees too");
  add(-2, Effect::kFills, "urgent");
  loop.run([] { return false; });
  EXPECT_EQ(ran, (std::vector<std::string>{"urgent", "turn after urgent", "frees", "turn after frees", "frees too",
                                           "turn after frees too", "fills", "turn after fills"}));
}

TEST(TurnQueue, DropsItsPiecesWhenItGoes) {
  ManualLoop loop;
  const auto witness = std::make_shared<int>(0);
  {
    TurnQueue queue(loop);
    queue.add(0, Effect::kFrees, [witness](const Status&) { ++*witness; });
  }
  loop.run([] { return false; });
  EXPECT_EQ(*witness, 0);
  EXPECT_EQ(witness.use_count(), 1);
}

TEST(SharedOperation, WithoutRoomDataTakesTheOtherWay) {
  const auto world = make_tcp_world(3, memory_of(2 * kMiB));
  Allreduces batch(*world, 6, 600'001);
  batch.start(1);
  ASSERT_TRUE(world->wait([&] { return batch.ended(); }));
  EXPECT_EQ(batch.failed(), 0);
  EXPECT_EQ(batch.wrong(), 0);
  EXPECT_TRUE(all_free(*world));
}

TEST(SharedOperation, SumsInLentMemoryAreThoseOfOtherMemory) {
  for (const int ranks : {2, 3, 4, 5}) {
    const auto world = make_tcp_world(ranks, memory_of(16 * kMiB));
    for (std::uint64_t round = 0; round < world::last_seed(10); ++round) {
      Allreduces batch(*world, 3, 290'001 + 1009 * round, true);
      batch.start(10 * round);
      ASSERT_TRUE(world->wait([&] { return batch.ended(); }));
      EXPECT_EQ(batch.failed() + batch.wrong(), 0) << ranks << " ranks";
      EXPECT_GE(batch.lent(), ranks) << "what was lent before is used again";
    }
    EXPECT_TRUE(all_free(*world));
  }
}

TEST(SharedOperation, BesideLentMemoryOthersMayHaveNone) {
  const auto world = make_tcp_world(3, memory_of(2 * kMiB));
  Allreduces batch(*world, 6, 200'001, true);
  batch.start(1);
  ASSERT_TRUE(world->wait([&] { return batch.ended(); }));
  EXPECT_EQ(batch.failed() + batch.wrong(), 0);
  EXPECT_GT(batch.lent(), 0);
  EXPECT_LT(batch.lent(), 18);
  EXPECT_TRUE(all_free(*world));
}

class Cancelled : public ::testing::TestWithParam<bool> {};

TEST_P(Cancelled, OperationsLeaveNoBlockBehind) {
  const auto world = make_tcp_world(3, memory_of(8 * kMiB));
  std::mt19937_64 random(20261);
  int failed = 0;
  int lent = 0;
  std::atomic<int> cancelled{0};
  for (std::uint64_t round = 0; round < (world::kSanitized ? 10 : 25); ++round) {
    Allreduces batch(*world, 4, 200'000, GetParam());
    batch.start(100 * round);
    // Every rank cancels the same operation, at a random moment of its own.
    const OpTag tag(100 * round + random() % 4);
    cancelled = 0;
    for (Rank rank = 0; rank < world->size(); ++rank) {
      cancel_after(*world, rank, tag, random() % 30, cancelled);
    }
    ASSERT_TRUE(world->wait([&] { return batch.ended() && cancelled == world->size(); })) << "round " << round;
    EXPECT_EQ(batch.wrong(), 0);
    failed += batch.failed();
    lent += batch.lent();
    EXPECT_TRUE(all_free(*world)) << "round " << round;
  }
  EXPECT_GT(failed, 0);
  EXPECT_EQ(lent > 0, GetParam());
}

INSTANTIATE_TEST_SUITE_P(SharedOperation, Cancelled, ::testing::Bool(),
                         [](const auto& lent) { return lent.param ? "InLentMemory" : "InOtherMemory"; });

// An allreduce that only one rank begins.
class Alone {
 public:
  Alone(World& world, Rank rank, std::uint64_t tag, std::size_t elements, bool lent = false) {
    world.on(rank, [this, &world, rank, tag, elements, lent] {
      memory_ = Numbers(world.at(rank), elements, lent);
      world.at(rank).start(memory_.args(OpTag(tag)), [this](const Status&) {
        memory_ = Numbers();
        ended_ = true;
        notify();
      });
    });
  }
  bool ended() const { return ended_; }

 private:
  Numbers memory_;
  std::atomic<bool> ended_{false};
};

constexpr TagGroup kFirstTags(OpTag(0), ~std::uint64_t{7});

void cancel_first_tags(World& world, Rank rank) {
  std::atomic<int> cancelled{0};
  world.on(rank, [&] {
    world.at(rank).cancel(kFirstTags, {Code::kAborted, "test"});
    ++cancelled;
    notify();
  });
  ASSERT_TRUE(world.wait([&] { return cancelled == 1; }));
}

TEST(SharedOperation, WhatARankNeverBeginsIsFreedWhenItCancelsIt) {
  for (const bool reader_first : {false, true}) {
    const auto world = make_tcp_world(2, memory_of(4 * kMiB));
    if (reader_first) {
      cancel_first_tags(*world, 1);
    }
    const Alone one(*world, 0, 1, 300'000);
    const Alone two(*world, 0, 2, 300'000);
    ASSERT_TRUE(becomes_used(*world, 20));
    cancel_first_tags(*world, 1);
    cancel_first_tags(*world, 0);
    ASSERT_TRUE(world->wait([&] { return one.ended() && two.ended(); }));
    EXPECT_TRUE(all_free(*world));
  }
}

TEST(SharedOperation, LentMemoryIsShownWhereItIs) {
  for (const bool reader_first : {false, true}) {
    const auto world = make_tcp_world(2, memory_of(4 * kMiB));
    if (reader_first) {
      cancel_first_tags(*world, 1);
    }
    const Alone one(*world, 0, 1, 300'000, true);
    ASSERT_TRUE(becomes_used(*world, 19)) << "and no block besides";
    EXPECT_EQ(pages_used(*world), 19U);
    cancel_first_tags(*world, 1);
    EXPECT_EQ(pages_used(*world), 19U) << "its owner has it";
    cancel_first_tags(*world, 0);
    ASSERT_TRUE(world->wait([&] { return one.ended(); }));
    EXPECT_TRUE(all_free(*world));
  }
}

// The owner of the unread block does not cancel its operation while the others run.
TEST(SharedOperation, WhatNobodyReadsGivesWayToData) {
  const auto world = make_tcp_world(2, memory_of(2 * kMiB));
  cancel_first_tags(*world, 1);
  const Alone unread(*world, 0, 1, 300'000);
  ASSERT_TRUE(becomes_used(*world, 10));
  Allreduces batch(*world, 4, 600'001);
  // Rank 1 reads nothing before rank 0 has tried to publish all four, of which only one has room.
  batch.start_on(0, 100);
  ASSERT_TRUE(becomes_used(*world, 29));
  for (int turn = 0; turn < 10; ++turn) {
    EXPECT_EQ(pages_used(*world), 29U);
  }
  batch.start_on(1, 100);
  ASSERT_TRUE(world->wait([&] { return batch.ended(); }));
  EXPECT_EQ(batch.failed() + batch.wrong(), 0);
  EXPECT_TRUE(all_free(*world));
  cancel_first_tags(*world, 0);
  ASSERT_TRUE(world->wait([&] { return unread.ended(); }));
}

TEST(SharedOperation, AbortEndsAllWithTheFirstCause) {
  const auto world = make_tcp_world(2, memory_of(4 * kMiB));
  Allreduces batch(*world, 4, 1'000'000);
  // Rank 1 aborts before it has started an operation, so that none of rank 0 can complete.
  world->on(1, [&world] { world->at(1).abort({Code::kAborted, "test"}); });
  batch.start(1);
  world->on(0, [&world] { world->at(0).abort({Code::kAborted, "test"}); });
  ASSERT_TRUE(world->wait([&] { return batch.ended(); }));
  EXPECT_EQ(batch.failed(), 8);
}

TEST(SharedOperation, AnUrgentOneOvertakesBulk) {
  const auto world = make_tcp_world(2, memory_of(16 * kMiB));
  std::vector<std::vector<float>> bulk(2, std::vector<float>(8 * kMiB, 1));
  std::vector<std::vector<float>> urgent(2, std::vector<float>(64 * 1024, 1));
  std::atomic<int> bulk_ended{0};
  std::atomic<int> urgent_ended{0};
  std::atomic<int> overtaken{0};
  for (Rank rank = 0; rank < 2; ++rank) {
    world->on(rank, [&, rank] {
      const auto args_for = [rank](std::vector<std::vector<float>>& memory, std::uint64_t tag, int priority) {
        CollectiveArgs args;
        args.tag = OpTag(tag);
        args.priority = priority;
        args.in = std::as_bytes(std::span(memory[static_cast<std::size_t>(rank)]));
        args.out = std::as_writable_bytes(std::span(memory[static_cast<std::size_t>(rank)]));
        return args;
      };
      world->at(rank).start(args_for(bulk, 1, 10), [&](const Status&) {
        ++bulk_ended;
        notify();
      });
      world->at(rank).start(args_for(urgent, 2, 0), [&](const Status& status) {
        EXPECT_TRUE(status.ok()) << status.to_string();
        overtaken += bulk_ended == 0 ? 1 : 0;
        ++urgent_ended;
        notify();
      });
    });
  }
  ASSERT_TRUE(world->wait([&] { return urgent_ended == 2 && bulk_ended == 2; }));
  EXPECT_EQ(overtaken, 2);
}

}  // namespace
}  // namespace sirtaki::net::testing
