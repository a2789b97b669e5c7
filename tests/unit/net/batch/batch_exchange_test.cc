// Small allreduces in batches: number of messages, ranks that lag behind, lack of room, cancellations, wrong arguments.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/net/collectives/allreduces.h"

namespace sirtaki::net::testing {
namespace {

constexpr std::size_t k4KiB = 1024;  // elements

// Returns the largest number of messages that rank 0 has sent to another rank.
std::uint64_t messages_sent(World& world) {
  std::atomic<std::uint64_t> most{0};
  std::atomic<bool> answered{false};
  world.on(0, [&] {
    for (const PeerStats& peer : dynamic_cast<Transport&>(world.link(0)).stats()) {
      most = std::max(most.load(), peer.counters.messages_sent);
    }
    answered = true;
    notify();
  });
  EXPECT_TRUE(world.wait([&] { return answered.load(); }));
  return most;
}

TEST(BatchExchange, ManyOperationsTakeFewMessages) {
  for (const int ranks : {2, 4}) {
    const auto world = make_tcp_world(ranks, memory_of(16 * kMiB));
    const std::uint64_t before = messages_sent(*world);
    Allreduces all(*world, 1000, k4KiB);
    for (Rank rank = 0; rank < ranks; ++rank) {
      all.start_on(rank, 1);
    }
    ASSERT_TRUE(world->wait([&] { return all.ended(); }));
    EXPECT_EQ(all.failed() + all.wrong(), 0);
    // 4,000 KiB in batches of 256 KiB, and an answer for every second one.
    EXPECT_LE(messages_sent(*world) - before, 24U) << ranks << " ranks";
    EXPECT_TRUE(all_free(*world));
  }
}

TEST(BatchExchange, OneOperationAtATimeNeedsOneMessageToEachRank) {
  const auto world = make_tcp_world(3, memory_of(4 * kMiB));
  const std::uint64_t before = messages_sent(*world);
  constexpr std::uint64_t kOperations = 50;
  for (std::uint64_t tag = 1; tag <= kOperations; ++tag) {
    Allreduces one(*world, 1, 1);
    one.start(tag);
    ASSERT_TRUE(world->wait([&] { return one.ended(); }));
    EXPECT_EQ(one.failed() + one.wrong(), 0);
  }
  EXPECT_EQ(messages_sent(*world) - before, kOperations);
}

// Rank 0 waits for one operation before it starts the other, rank 1 the other way round.
TEST(BatchExchange, NoOperationWaitsForAnother) {
  const auto world = make_tcp_world(3, memory_of(4 * kMiB));
  Allreduces late(*world, 900, k4KiB);
  Allreduces early(*world, 900, k4KiB);
  late.start_on(1, 10'000);
  for (Rank rank = 0; rank < 3; ++rank) {
    early.start_on(rank, 1);
  }
  late.start_on(2, 10'000);
  ASSERT_TRUE(world->wait([&] { return early.ended(); }));
  late.start_on(0, 10'000);
  ASSERT_TRUE(world->wait([&] { return late.ended(); }));
  EXPECT_EQ(early.failed() + early.wrong() + late.failed() + late.wrong(), 0);
  EXPECT_TRUE(all_free(*world));
}

TEST(BatchExchange, WithoutRoomInputsFollow) {
  const auto world = make_tcp_world(3, memory_of(2 * kMiB));
  Allreduces all(*world, 1200, k4KiB);
  Allreduces pair(*world, 1, 1);
  all.start_on(0, 1);
  all.start_on(1, 1);
  // Rank 2 reads batches from now on, while it takes part in none of their operations.
  pair.start(50'000);
  ASSERT_TRUE(world->wait([&] { return pair.ended(); }));
  all.start_on(2, 1);
  ASSERT_TRUE(world->wait([&] { return all.ended(); }));
  EXPECT_EQ(all.failed() + all.wrong(), 0);
  EXPECT_GT(messages_sent(*world), 200U) << "the inputs should not have had room";
  EXPECT_TRUE(all_free(*world));
}

TEST(BatchExchange, CancelledOperationsLeaveNoBlockBehind) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto world = make_tcp_world(3, memory_of(2 * kMiB));
  std::atomic<int> cancelled{0};
  for (std::uint64_t round = 0; round < 60; ++round) {
    Allreduces all(*world, 30, 2 * k4KiB);
    all.start(100 * round);
    cancelled = 0;
    for (std::uint64_t n = 0; n < 5; ++n) {
      const OpTag tag(100 * round + random() % 30);
      for (Rank rank = 0; rank < world->size(); ++rank) {
        cancel_after(*world, rank, tag, random() % 60, cancelled);
      }
    }
    ASSERT_TRUE(world->wait([&] { return all.ended() && cancelled == 5 * world->size(); })) << "round " << round;
    EXPECT_EQ(all.wrong(), 0);
    EXPECT_TRUE(all_free(*world)) << "round " << round;
  }
}

// A rank that has ended an operation may use its tag again while others still wait for an input.
class SameTag {
 public:
  SameTag(World& world, Rank rank, int uses) : world_(world), rank_(rank), left_(uses) {}
  void next() {
    if (left_-- == 0) {
      over_ = true;
      notify();
      return;
    }
    value_ = static_cast<float>(left_ + rank_);
    CollectiveArgs args;
    args.tag = OpTag(77);
    args.out = std::as_writable_bytes(std::span(&value_, 1));
    args.in = args.out;
    world_.at(rank_).start(std::move(args), [this](const Status& status) {
      const int size = world_.size();
      good_ = good_ && status.ok() && value_ == static_cast<float>(size * left_ + size * (size - 1) / 2);
      next();
    });
  }
  bool over() const { return over_; }
  bool good() const { return good_; }

 private:
  World& world_;
  const Rank rank_;
  int left_;
  float value_ = 0;
  std::atomic<bool> good_{true};
  std::atomic<bool> over_{false};
};

TEST(BatchExchange, UsesOfOneTagFollowOneAnother) {
  const auto world = make_tcp_world(4, memory_of(2 * kMiB));
  std::vector<std::unique_ptr<SameTag>> ranks;
  for (Rank rank = 0; rank < world->size(); ++rank) {
    ranks.push_back(std::make_unique<SameTag>(*world, rank, 500));
    world->on(rank, [one = ranks.back().get()] { one->next(); });
  }
  for (const auto& one : ranks) {
    ASSERT_TRUE(world->wait([&] { return one->over(); }));
    EXPECT_TRUE(one->good());
  }
}

// One rank has another length; 100,000 elements go in no batch.
TEST(BatchExchange, WrongArgumentsEndTheOperationOnAllRanks) {
  for (const std::size_t other : {std::size_t{11}, std::size_t{100'000}}) {
    for (const int ranks : {2, 3}) {
      const auto world = make_tcp_world(ranks, memory_of(4 * kMiB));
      std::vector<std::vector<std::byte>> memory(static_cast<std::size_t>(ranks), std::vector<std::byte>(40));
      memory.back().resize(4 * other);
      std::vector<CollectiveArgs> args(memory.size());
      for (std::size_t rank = 0; rank < memory.size(); ++rank) {
        args[rank].tag = OpTag(5);
        args[rank].in = memory[rank];
        args[rank].out = memory[rank];
      }
      const auto results = run_on_all(*world, args);
      ASSERT_EQ(results.size(), memory.size()) << other << " elements: it hangs";
      for (const Status& status : results) {
        EXPECT_EQ(status.code(), Code::kMismatch) << status.to_string();
      }
      Allreduces next(*world, 3, 50);
      next.start(100);
      ASSERT_TRUE(world->wait([&] { return next.ended(); }));
      EXPECT_EQ(next.failed() + next.wrong(), 0);
      EXPECT_TRUE(all_free(*world));
    }
  }
}

// The last rank never takes part; its connections end.
TEST(BatchExchange, ALostRankEndsTheOperationsThatNeedIt) {
  const auto world = make_tcp_world(3, memory_of(4 * kMiB));
  Allreduces before(*world, 20, 100);
  before.start(1);
  ASSERT_TRUE(world->wait([&] { return before.ended(); }));
  std::vector<float> memory(2, 1.0F);
  std::atomic<int> ended{0};
  for (Rank rank = 0; rank < 2; ++rank) {
    world->on(rank, [&, rank] {
      CollectiveArgs args;
      args.tag = OpTag(1000);
      args.out = std::as_writable_bytes(std::span(&memory[static_cast<std::size_t>(rank)], 1));
      args.in = args.out;
      world->at(rank).start(std::move(args), [&](const Status& status) {
        EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
        ++ended;
        notify();
      });
    });
  }
  world->on(2, [&] { dynamic_cast<Transport&>(world->link(2)).close([](const Status&) {}); });
  ASSERT_TRUE(world->wait([&] { return ended == 2; }));
}

}  // namespace
}  // namespace sirtaki::net::testing
