// Operations over shared memory: lack of space, cancellations, lost ranks, and the order of operations.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/net/collectives/turn_queue.h"
#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net::testing {
namespace {

WorldOptions memory_of(std::size_t bytes) {
  WorldOptions options;
  options.shared_bytes = bytes;
  return options;
}

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

// Input that differs by rank and position and has exact sums. It lies in shared memory of the collectives if `lent` is
// set and space is left, else in private memory. Use it on the loop of the rank.
class Numbers {
 public:
  Numbers() = default;
  Numbers(Collectives& net, std::size_t count, bool lent) : own_(count) {
    for (std::size_t i = 0; i < count; ++i) {
      own_[i] = static_cast<float>(net.rank() + 1) * static_cast<float>(i % 1009);
    }
    if (lent) {
      lent_ = net.allocate_shared(count * sizeof(float));
      const auto bytes = std::as_bytes(std::span(own_)).first(lent_.memory.size());
      std::ranges::copy(bytes, lent_.memory.begin());
    }
  }
  bool lent() const { return lent_.keeps != nullptr; }
  CollectiveArgs args(OpTag tag) {
    CollectiveArgs args;
    args.tag = tag;
    args.out = lent() ? lent_.memory : std::as_writable_bytes(std::span(own_));
    args.in = args.out;
    return args;
  }
  bool are_sums(int ranks) const {
    std::vector<float> sums(own_.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = static_cast<float>(ranks * (ranks + 1) / 2) * static_cast<float>(i % 1009);
    }
    return lent() ? std::ranges::equal(lent_.memory, std::as_bytes(std::span(sums))) : own_ == sums;
  }

 private:
  std::vector<float> own_;
  SharedBuffer lent_;
};

// Allreduces that are all in flight at once.
class Batch {
 public:
  Batch(World& world, int operations, std::size_t elements, bool lent = false)
      : world_(world), elements_(elements), lent_(lent), memory_(static_cast<std::size_t>(operations * world.size())) {}

  void start(std::uint64_t first_tag) {
    const auto ranks = static_cast<std::size_t>(world_.size());
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const auto rank = static_cast<Rank>(i % ranks);
      const OpTag tag(first_tag + i / ranks);
      world_.on(rank, [this, rank, tag, i] {
        memory_[i] = Numbers(world_.at(rank), elements_, lent_);
        found_lent_ += memory_[i].lent() ? 1 : 0;
        world_.at(rank).start(memory_[i].args(tag), [this, i](const Status& status) {
          if (status.ok()) {
            wrong_ += memory_[i].are_sums(world_.size()) ? 0 : 1;
          } else {
            ++failed_;
          }
          memory_[i] = Numbers();
          ++ended_;
          notify();
        });
      });
    }
  }
  bool ended() const { return ended_ == static_cast<int>(memory_.size()); }
  int failed() const { return failed_; }
  int wrong() const { return wrong_; }
  int lent() const { return found_lent_; }

 private:
  World& world_;
  const std::size_t elements_;
  const bool lent_;
  std::vector<Numbers> memory_;
  std::atomic<int> found_lent_{0};
  std::atomic<int> ended_{0};
  std::atomic<int> failed_{0};
  std::atomic<int> wrong_{0};
};

std::size_t pages_used(World& world) {
  std::atomic<int> answers{0};
  std::atomic<std::size_t> used{0};
  for (Rank rank = 0; rank < world.size(); ++rank) {
    world.on(rank, [&, rank] {
      used += world.shared(rank)->pages_used();
      ++answers;
      notify();
    });
  }
  EXPECT_TRUE(world.wait([&] { return answers == world.size(); }));
  return used;
}

// Returns true once `pages` pages are used. Each call of pages_used() runs a turn of every loop.
bool becomes_used(World& world, std::size_t pages) {
  for (int looks = 0; looks < 100'000; ++looks) {
    if (pages_used(world) == pages) {
      return true;
    }
  }
  return false;
}

// Waits until no page is used: a rank learns by a message of another one that its block has been read.
bool all_free(World& world) {
  return becomes_used(world, 0);
}

TEST(SharedOperation, WithoutRoomDataTakesTheOtherWay) {
  const auto world = make_tcp_world(3, memory_of(2 * kMiB));
  Batch batch(*world, 6, 600'001);
  batch.start(1);
  ASSERT_TRUE(world->wait([&] { return batch.ended(); }));
  EXPECT_EQ(batch.failed(), 0);
  EXPECT_EQ(batch.wrong(), 0);
  EXPECT_TRUE(all_free(*world));
}

TEST(SharedOperation, SumsInLentMemoryAreThoseOfOtherMemory) {
  for (const int ranks : {2, 3, 4, 5}) {
    const auto world = make_tcp_world(ranks, memory_of(16 * kMiB));
    for (std::uint64_t round = 0; round < 10; ++round) {
      Batch batch(*world, 3, 290'001 + 1009 * round, true);
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
  Batch batch(*world, 6, 200'001, true);
  batch.start(1);
  ASSERT_TRUE(world->wait([&] { return batch.ended(); }));
  EXPECT_EQ(batch.failed() + batch.wrong(), 0);
  EXPECT_GT(batch.lent(), 0);
  EXPECT_LT(batch.lent(), 18);
  EXPECT_TRUE(all_free(*world));
}

void cancel_after(World& world, Rank rank, OpTag tag, std::uint64_t turns, std::atomic<int>& cancelled) {
  world.on(rank, [&world, rank, tag, turns, &cancelled] {
    if (turns > 0) {
      cancel_after(world, rank, tag, turns - 1, cancelled);
      return;
    }
    world.at(rank).cancel(tag, {Code::kAborted, "test"});
    ++cancelled;
    notify();
  });
}

class Cancelled : public ::testing::TestWithParam<bool> {};

TEST_P(Cancelled, OperationsLeaveNoBlockBehind) {
  const auto world = make_tcp_world(3, memory_of(8 * kMiB));
  std::mt19937_64 random(20261);
  int failed = 0;
  int lent = 0;
  std::atomic<int> cancelled{0};
  for (std::uint64_t round = 0; round < 25; ++round) {
    Batch batch(*world, 4, 200'000, GetParam());
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
  Batch batch(*world, 4, 600'001);
  batch.start(100);
  ASSERT_TRUE(world->wait([&] { return batch.ended(); }));
  EXPECT_EQ(batch.failed() + batch.wrong(), 0);
  EXPECT_TRUE(all_free(*world));
  cancel_first_tags(*world, 0);
  ASSERT_TRUE(world->wait([&] { return unread.ended(); }));
}

TEST(SharedOperation, AbortEndsAllWithTheFirstCause) {
  const auto world = make_tcp_world(2, memory_of(4 * kMiB));
  Batch batch(*world, 4, 1'000'000);
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
