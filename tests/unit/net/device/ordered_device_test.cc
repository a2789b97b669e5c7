// OrderedDevice over fake collectives that record their launches: order, cancellation and ends.
#include "runtime/net/device/ordered_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "tests/unit/net/device/ordered_device_fixture.h"

namespace sirtaki::net {
namespace {

TEST_F(OrderedDeviceTest, LaunchesOperationsThatAllHaveStarted) {
  open(3);
  start(0, 1);
  start(0, 2);
  start(1, 2);
  start(1, 1);
  run();
  EXPECT_TRUE(at(0).inner->tags.empty());
  start(2, 2, -7);
  run();
  for (Member& member : members_) {
    EXPECT_EQ(member.inner->tags, std::vector<OpTag>{OpTag(2)});
  }
  start(2, 1);
  run();
  finish_all();
  for (Member& member : members_) {
    EXPECT_EQ(member.inner->tags, (std::vector<OpTag>{OpTag(2), OpTag(1)}));
    EXPECT_EQ(member.ended.size(), 2U);
  }
}

using Groups = std::vector<std::vector<std::uint64_t>>;

TEST_F(OrderedDeviceTest, OperationsWithAPlaceAtTheSameTimeAreAGroup) {
  open(3);
  for (const Rank rank : {2, 1, 0}) {
    for (std::uint64_t tag = 1; tag <= 40; ++tag) {
      start(rank, tag);
    }
    run();
  }
  ASSERT_EQ(at(0).inner->groups.size(), 1U) << "more than fit into one message";
  EXPECT_EQ(at(0).inner->groups[0].size(), 40U);
  for (const Rank rank : {2, 1, 0}) {
    start(rank, 41);
  }
  run();
  EXPECT_EQ(at(0).inner->groups.back(), std::vector<std::uint64_t>{41}) << "later";
  for (Member& member : members_) {
    EXPECT_EQ(member.inner->groups, at(0).inner->groups);
  }
}

TEST_F(OrderedDeviceTest, GroupsHaveALimitOfBytesAndOneSetOfRanks) {
  open(2);
  start_on_all(1, 60);
  start_on_all(2, 40);
  start_on_all(3, 4);
  start_on_all(4, 200);
  start_on_all(5, 4);
  start_on_all(6, 4, true);
  start_on_all(7, 4, true);
  start_on_all(8, 4);
  run();
  for (Member& member : members_) {
    EXPECT_EQ(member.inner->groups, (Groups{{1, 2}, {3}, {4}, {5}, {6, 7}, {8}}));
  }
}

TEST_F(OrderedDeviceTest, AWithdrawnOperationIsInNoGroup) {
  open(2);
  start_on_all(1, 4);
  start_on_all(2, 4);
  start_on_all(3, 4);
  cancel(0, 2);
  run();
  for (Member& member : members_) {
    EXPECT_EQ(member.inner->groups, (Groups{{1, 3}}));
  }
}

TEST_F(OrderedDeviceTest, AnOperationCancelledInAGroupRunsWithIt) {
  for (const std::vector<Rank>& by : {std::vector<Rank>{0}, {1}, {0, 1}}) {
    SCOPED_TRACE(::testing::PrintToString(by));
    members_.clear();
    LocalOptions slow;
    slow.delay = [](Rank, Rank, std::size_t) { return std::chrono::milliseconds(1); };
    open(2, slow);
    for (const std::uint64_t tag : {1U, 2U, 3U}) {
      start_on_all(tag, 4);
    }
    // The group is on its way to rank 1.
    run_for(std::chrono::microseconds(1500));
    EXPECT_TRUE(at(1).inner->tags.empty());
    for (const Rank rank : by) {
      cancel(rank, 2);
    }
    run();
    for (Member& member : members_) {
      EXPECT_EQ(member.inner->groups, (Groups{{1, 2, 3}}));
      EXPECT_TRUE(member.ended.empty());
    }
    finish_all();
    run();
    for (const Rank rank : {0, 1}) {
      ASSERT_EQ(at(rank).ended.size(), 3U);
      EXPECT_EQ(at(rank).ended[1].status.text(), std::ranges::count(by, rank) > 0 ? "no more of 2" : "");
      EXPECT_TRUE(at(rank).ended[0].status.ok() && at(rank).ended[2].status.ok());
      EXPECT_TRUE(at(rank).broken.empty() && at(rank).inner->aborted.ok());
    }
  }
}

// Rank 1 has the first of three messages about a group.
TEST_F(OrderedDeviceTest, AGroupThatTheLossOfRank0CutsIsNotLaunched) {
  LocalOptions slow;
  slow.bytes_per_second = 1000.0 * kLaunchWordsBytes;  // a message leaves in a millisecond
  open(3, slow);
  constexpr std::uint64_t kTags = 50;
  for (const Rank rank : {2, 1, 0}) {
    run();
    for (std::uint64_t tag = 1; tag <= kTags; ++tag) {
      start(rank, tag);
    }
  }
  run_for(std::chrono::microseconds(1500));
  EXPECT_TRUE(at(0).inner->tags.empty()) << "it launches after its messages have left";
  group_->kill(0, {Code::kAborted, "killed"});
  run();
  EXPECT_TRUE(at(1).inner->tags.empty()) << "NCCL would wait for the rest of it";
  EXPECT_TRUE(at(2).inner->tags.empty());
  for (const Rank rank : {1, 2}) {
    EXPECT_EQ(at(rank).ended.size(), kTags);
    for (const Ended& ended : at(rank).ended) {
      EXPECT_EQ(ended.status.code(), Code::kPeerLost);
      EXPECT_EQ(ended.status.blame().rank, 0);
    }
    EXPECT_EQ(at(rank).inner->dropped.count(kJobSet), 1U);
    EXPECT_TRUE(at(rank).broken.empty());
  }
}

TEST_F(OrderedDeviceTest, ATagIsFreeWhenItsOperationHasEnded) {
  open(2);
  for (int i = 0; i < 3; ++i) {
    start(0, 1);
    start(1, 1);
    run();
    start(0, 1);
    run();
    EXPECT_EQ(at(0).ended.back().status.code(), Code::kInvalidArgument) << "the tag is in flight";
    finish_all();
    EXPECT_TRUE(at(0).ended.back().status.ok() && at(1).ended.back().status.ok());
  }
}

TEST_F(OrderedDeviceTest, AnOperationCancelledWithoutAPlaceIsNeverLaunched) {
  open(2);
  for (const Rank rank : {0, 1}) {
    start(rank, 1);
    run();
    cancel(rank, 1);
    EXPECT_TRUE(at(rank).ended.empty()) << "rank 0 may be about to order it";
    run();
    ASSERT_EQ(at(rank).ended.size(), 1U);
    EXPECT_EQ(at(rank).ended[0].status.text(), "no more of 1");
  }
  start(0, 2);
  start(1, 2);
  run();
  EXPECT_EQ(at(0).inner->tags, std::vector<OpTag>{OpTag(2)});
}

TEST_F(OrderedDeviceTest, AFailureIsReportedAndEndsEverything) {
  open(2);
  start(0, 1);
  start(1, 1);
  start(1, 2);
  run();
  auto flying = std::exchange(at(1).inner->flying, {});
  flying.at(0).done(unavailable("NCCL failed"));
  run();
  EXPECT_EQ(at(1).ended.size(), 2U);
  for (const Ended& ended : at(1).ended) {
    EXPECT_EQ(ended.status.text(), "NCCL failed");
  }
  ASSERT_EQ(at(1).broken.size(), 1U);
  EXPECT_EQ(at(1).broken[0].text(), "NCCL failed");
  EXPECT_EQ(at(0).inner->dropped.at(kJobSet).blame().rank, 1) << "rank 1 launches nothing any more";
  start(1, 3);
  run();
  EXPECT_EQ(at(1).ended.back().status.text(), "NCCL failed");
  at(0).ordered->abort({Code::kAborted, "the job is over"});
  EXPECT_EQ(at(0).ended.at(0).status.text(), "the job is over");
  run();
  EXPECT_TRUE(at(0).broken.empty()) << "an abort is no failure";
}

TEST_F(OrderedDeviceTest, ALostRankIsNamedToAll) {
  for (const Rank gone : {2, 0}) {
    SCOPED_TRACE(gone);
    members_.clear();
    open(3);
    for (const Rank rank : {0, 1, 2}) {
      start(rank, 1);
    }
    start(1, 2);
    run();
    EXPECT_EQ(at(1).inner->tags, std::vector<OpTag>{OpTag(1)});
    group_->kill(gone, {Code::kAborted, "killed"});
    run();
    ASSERT_EQ(at(1).ended.size(), 1U);
    EXPECT_EQ(at(1).ended[0].tag, OpTag(2)) << "a launched operation may end";
    EXPECT_EQ(at(1).inner->dropped.at(kJobSet).blame().rank, gone);
    EXPECT_TRUE(at(1).inner->aborted.ok());
    std::exchange(at(1).inner->flying, {}).at(0).done(at(1).inner->dropped.at(kJobSet));
    run();
    ASSERT_EQ(at(1).ended.size(), 2U);
    for (const Ended& ended : at(1).ended) {
      EXPECT_EQ(ended.status.code(), Code::kPeerLost);
      EXPECT_EQ(ended.status.blame().rank, gone);
    }
    EXPECT_EQ(at(1).inner->aborted.code(), Code::kPeerLost) << "but it has not";
    EXPECT_TRUE(at(1).broken.empty()) << "a rank that leaves breaks nothing";
  }
}

TEST_F(OrderedDeviceTest, AnOperationWithAPlaceIsLaunchedByAllDespiteALostRank) {
  LocalOptions slow;
  slow.bytes_per_second = 1000.0 * kLaunchWordsBytes;  // a message leaves in a millisecond
  open(3, slow);
  for (const Rank rank : {2, 1, 0}) {
    start(rank, 1);
  }
  start(0, 2);
  // The message of rank 0 has left for rank 1, but not for rank 2.
  ASSERT_TRUE(loop_.run([&] { return !at(1).inner->tags.empty(); }));
  EXPECT_TRUE(at(0).inner->tags.empty());
  group_->kill(2, {Code::kAborted, "killed"});
  ASSERT_TRUE(loop_.run([&] { return !at(0).ended.empty(); }));
  EXPECT_EQ(at(0).ended[0].tag, OpTag(2)) << "without a place";
  EXPECT_EQ(at(0).ended[0].status.code(), Code::kPeerLost);
  ASSERT_TRUE(loop_.run([&] { return !at(0).inner->tags.empty(); })) << "rank 1 launches alone";
  EXPECT_EQ(at(0).inner->tags, at(1).inner->tags);
  finish_all();
  run();
  for (const Rank rank : {0, 1}) {
    EXPECT_EQ(at(rank).ended.back().tag, OpTag(1));
    EXPECT_TRUE(at(rank).ended.back().status.ok()) << at(rank).ended.back().status.to_string();
    EXPECT_TRUE(at(rank).broken.empty());
  }
}

TEST_F(OrderedDeviceTest, ADamagedMessageEndsEverything) {
  const auto words = [](LaunchWord::Kind kind, std::int32_t number) {
    return encode_launch_words(std::vector<LaunchWord>{{kind, OpTag(), number}});
  };
  std::vector<std::byte> spoiled = words(LaunchWord::Kind::kReady, 1);
  spoiled.back() = std::byte{1};
  for (const Rank from : {0, 1}) {
    for (const auto& message : {spoiled, std::vector<std::byte>(kLaunchWordsBytes), std::vector<std::byte>(8),
                                words(LaunchWord::Kind::kGone, from == 0 ? 2 : 0)}) {
      members_.clear();
      open(2);
      start(0, 1);
      start(1, 1);
      start(1 - from, 2);
      run();
      at(from).link->send({1 - from, OpTag(1000000), from == 0 ? 1U : 0U, kLaunchWordsCheck, 0}, message,
                          [](const Status&) {});
      run();
      const Member& other = at(1 - from);
      ASSERT_EQ(other.broken.size(), 1U);
      EXPECT_EQ(other.broken[0].code(), Code::kCorrupt);
      EXPECT_EQ(other.broken[0].blame().rank, from);
      EXPECT_NE(other.broken[0].text().find("cannot agree on the order of launches"), std::string_view::npos)
          << other.broken[0].text();
      EXPECT_EQ(other.ended.size(), 2U);
      EXPECT_EQ(other.inner->aborted.code(), Code::kCorrupt);
    }
  }
}

TEST_F(OrderedDeviceTest, OrdersAreTheSameOnAllRanksForRandomSchedules) {
  constexpr std::uint64_t kTags = 40;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    members_.clear();
    const int size = 2 + static_cast<int>(seed % 3);
    LocalOptions slow;
    slow.delay = [&random](Rank, Rank, std::size_t) { return std::chrono::microseconds(random() % 500); };
    open(size, slow);
    std::vector<std::uint64_t> cancelled;
    for (std::uint64_t tag = 1; tag <= kTags; ++tag) {
      if (random() % 4 == 0) {
        cancelled.push_back(tag);
      }
    }
    for (Rank rank = 0; rank < size; ++rank) {
      std::vector<std::uint64_t> tags(kTags);
      for (std::uint64_t i = 0; i < kTags; ++i) {
        tags[i] = i + 1;
      }
      std::ranges::shuffle(tags, random);
      for (const std::uint64_t tag : tags) {
        loop_.after(
            std::chrono::microseconds(random() % 3000),
            [this, rank, tag, priority = static_cast<std::int32_t>(random() % 3)] { start(rank, tag, priority); });
      }
      for (const std::uint64_t tag : cancelled) {
        loop_.after(std::chrono::microseconds(3000 + random() % 500), [this, rank, tag] { cancel(rank, tag); });
      }
    }
    run();
    finish_all();
    run();
    for (Member& member : members_) {
      EXPECT_EQ(member.inner->tags, at(0).inner->tags);
      EXPECT_EQ(member.inner->groups, at(0).inner->groups);
      EXPECT_FALSE(member.inner->open);
      EXPECT_EQ(member.ended.size(), kTags);
      for (const Ended& ended : member.ended) {
        EXPECT_TRUE(ended.status.ok() || std::ranges::count(cancelled, ended.tag.value) > 0)
            << ended.status.to_string();
      }
    }
  }
}

// One rank may have launched more than another one, but never in another order or in other groups.
TEST_F(OrderedDeviceTest, OrdersAreTheSameUntilRank0IsLost) {
  constexpr std::uint64_t kTags = 60;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    members_.clear();
    LocalOptions slow;
    slow.delay = [&random](Rank, Rank, std::size_t) { return std::chrono::microseconds(random() % 500); };
    open(3, slow);
    for (Rank rank = 0; rank < 3; ++rank) {
      for (std::uint64_t tag = 1; tag <= kTags; ++tag) {
        const auto at = std::chrono::microseconds(random() % 2000);
        loop_.after(at, [this, rank, tag] { start(rank, tag, static_cast<std::int32_t>(tag % 3)); });
        if (random() % 4 == 0) {
          loop_.after(at + std::chrono::microseconds(random() % 1000), [this, rank, tag] { cancel(rank, tag); });
        }
      }
    }
    loop_.after(std::chrono::microseconds(random() % 4000), [this] { group_->kill(0, {Code::kAborted, "killed"}); });
    run();
    for (const Rank rank : {1, 2}) {
      EXPECT_EQ(at(rank).ended.size() + at(rank).inner->flying.size(), kTags);
      EXPECT_FALSE(at(rank).inner->open) << "a group that lacks its end";
      EXPECT_TRUE(at(rank).broken.empty());
    }
    const Recorder& one = *at(1).inner;
    const Recorder& two = *at(2).inner;
    const auto both = static_cast<std::ptrdiff_t>(std::min(one.tags.size(), two.tags.size()));
    EXPECT_TRUE(std::equal(one.tags.begin(), one.tags.begin() + both, two.tags.begin()));
    const auto groups = static_cast<std::ptrdiff_t>(std::min(one.groups.size(), two.groups.size()));
    EXPECT_TRUE(std::equal(one.groups.begin(), one.groups.begin() + groups, two.groups.begin()));
  }
}

}  // namespace
}  // namespace sirtaki::net
